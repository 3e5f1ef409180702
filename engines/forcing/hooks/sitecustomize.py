"""Found by Python as each process of a server starts, because ``hook.py`` puts this folder on its PYTHONPATH.

The files of this folder run inside other projects' servers: they import nothing of this project.
"""

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import ostinato_forcing

_HERE = Path(__file__).resolve().parent


def _run_the_hidden_one() -> None:
    """Run the ``sitecustomize`` that this one stands before: images and distributions may have their own."""
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


ostinato_forcing.install()
_run_the_hidden_one()
