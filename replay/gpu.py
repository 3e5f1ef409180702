"""Facts about the NVIDIA GPUs, from one call of ``nvidia-smi``."""

from collections.abc import Callable
from typing import Any

from replay.commands import output

_NUMBERS = {
    "memory.total": "memory_mib",
    "power.limit": "power_limit_w",
    "clocks.max.sm": "max_sm_clock_mhz",
    "clocks.max.memory": "max_memory_clock_mhz",
    "pcie.link.gen.max": "max_pcie_gen",
    "pcie.link.width.max": "max_pcie_width",
    "clocks.sm": "sm_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "pcie.link.gen.current": "pcie_gen",
    "pcie.link.width.current": "pcie_width",
    "temperature.gpu": "temperature_c",
    "power.draw": "power_w",
}
_WORDS = {
    "name": "name",
    "driver_version": "driver",
    "persistence_mode": "persistence_mode",
    "mig.mode.current": "mig",
}
CONSTANT = (
    "name",
    "driver",
    "memory_mib",
    "power_limit_w",
    "max_sm_clock_mhz",
    "max_pcie_gen",
    "max_pcie_width",
    "mig",
)
"""Of these two runs must agree; the others move with the load. (An idle GPU's link runs slower than a busy one's:
telemetry has it under load.)"""
QUERY = ("nvidia-smi", "--query-gpu=" + ",".join([*_WORDS, *_NUMBERS]), "--format=csv,noheader,nounits")


def gpus(ask: Callable[..., str | None] = output) -> list[dict[str, Any]] | None:
    """One mapping a GPU; None where ``nvidia-smi`` is missing or fails. A value the GPU does not tell is None."""
    lines = ask(QUERY)
    return [_facts(line) for line in lines.splitlines()] if lines else None


def _facts(line: str) -> dict[str, Any]:
    cells = [cell.strip() for cell in line.split(",")]
    words = dict(zip(_WORDS.values(), map(_word, cells), strict=False))
    return words | dict(zip(_NUMBERS.values(), map(_number, cells[len(_WORDS) :]), strict=False))


def _word(cell: str) -> str | None:
    return None if cell.startswith("[") or cell == "N/A" else cell  # [N/A], [Not Supported]


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
