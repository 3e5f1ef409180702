"""As an image may have one: it must run although the hook's stands before it."""

import os

os.environ["STANDIN_SITECUSTOMIZE"] = "ran"
