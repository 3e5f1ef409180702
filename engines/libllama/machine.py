"""Whether a wheel's build can run on this machine, found before it crashes."""

import platform
import sys
from pathlib import Path
from typing import NamedTuple

from engines.libllama.wheels import Wheel

_CPU_FLAGS = frozenset({"avx2", "bmi2", "f16c", "fma"})
"""What both builds were compiled for; without them the first product ends in SIGILL."""

_GLIBC = (2, 28)


class Machine(NamedTuple):
    """What decides whether a wheel can be used here."""

    system: str
    processor: str
    libc: tuple[str, str]
    cpu_flags: frozenset[str]
    python: tuple[int, int]


def this_machine() -> Machine:
    """The machine this runs on."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    flags = next((line for line in lines if line.startswith("flags")), "")
    return Machine(
        platform.system(), platform.machine(), platform.libc_ver(), frozenset(flags.split()), sys.version_info[:2]
    )


def unfit(wheel: Wheel, machine: Machine) -> str:
    """Why the wheel can't run on a machine; empty when it can."""
    name, number = machine.libc
    if (machine.system, machine.processor) != ("Linux", "x86_64"):
        return f"it is used on Linux x86_64 only, this is {machine.system} {machine.processor}"
    if name != "glibc" or tuple(map(int, number.split("."))) < _GLIBC:
        return f"it needs glibc {_dotted(_GLIBC)} or newer, this is {name or 'another C library'} {number}".rstrip()
    if missing := sorted(_CPU_FLAGS - machine.cpu_flags):
        return f"it needs a CPU with {', '.join(missing)}"
    if wheel.newest_python is not None and machine.python > wheel.newest_python:
        return f"it has wheels up to Python {_dotted(wheel.newest_python)}, this is {_dotted(machine.python)}"
    return ""


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
