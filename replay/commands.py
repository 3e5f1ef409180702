"""What other programs say about themselves."""

import subprocess
from collections.abc import Sequence

_TIMEOUT_S = 5


def output(command: Sequence[str]) -> str | None:
    """Its standard output; None where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(  # noqa: S603 fixed programs of this project's own choice
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
