"""Checks on the machine, whichever engine runs on it."""

import resource
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from engines.base import EngineError
from engines.forcing.compiled import library
from replay.commands import output
from replay.doctor.finding import Finding, State
from replay.machine import machine

FREE_GPUS = ("nvidia-smi", "--query-gpu=name,memory.free,memory.total", "--format=csv,noheader,nounits")
LITTLE_DISK, LITTLER_DISK = 20 * 1024**3, 1024**3
"""A run's log, records and telemetry take megabytes; a synthetic model and a failing engine's log take more."""
UNLIMITED = resource.RLIM_INFINITY


def gpus() -> list[tuple[str, int, int]]:
    """Name, free MiB and total MiB of each GPU that the driver shows."""
    found = []
    for line in (output(FREE_GPUS) or "").splitlines():
        name, free, total = (cell.strip() for cell in line.rsplit(",", 2))
        if free.isdigit() and total.isdigit():
            found.append((name, int(free), int(total)))
    return found


def machine_findings(results: Path) -> list[Finding]:
    """Everything that can be told without an engine; takes well below a second."""
    facts = machine()
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return [
        gpu(gpus()),
        memory(psutil.virtual_memory().available, facts["memory_bytes"]),
        numa(facts),
        governor(facts),
        memlock(limit),
        disk(results),
        compiler(),
    ]


def gpu(found: Sequence[tuple[str, int, int]]) -> Finding:
    if not found:
        return Finding(check="GPUs", state="ok", found="none (nvidia-smi shows none)")
    said = ", ".join(f"{name}: {free:,} of {total:,} MiB free" for name, free, total in found)
    busy = any(free < 0.9 * total for _, free, total in found)
    return Finding(
        check="GPUs", state="advice" if busy else "ok", found=said,
        advice="another program holds GPU memory (nvidia-smi names it); end it" if busy else "",
    )  # fmt: skip


def memory(available: int, total: int) -> Finding:
    busy = available < total / 2
    return Finding(
        check="memory", state="advice" if busy else "ok",
        found=f"{available / 2**30:,.1f} of {total / 2**30:,.1f} GiB available",
        advice="other programs hold most of the memory; end them" if busy else "",
    )  # fmt: skip


def numa(facts: Mapping[str, Any]) -> Finding:
    """Balancing moves pages between nodes while an engine computes on them."""
    nodes, balancing = facts["numa_nodes"], facts["numa_balancing"]
    moved = (nodes or 1) > 1 and balancing not in (None, "0")
    return Finding(
        check="NUMA balancing", state="advice" if moved else "ok",
        found=f"nodes: {nodes or 'not told'}, balancing: {balancing or 'not told'}",
        advice="sysctl kernel.numa_balancing=0, and set hardware.cpuset_mems" if moved else "",
    )  # fmt: skip


def governor(facts: Mapping[str, Any]) -> Finding:
    now = facts["governor"]
    slow = now not in (None, "performance")
    return Finding(
        check="CPU governor", state="advice" if slow else "ok", found=now or "not told by this machine",
        advice="cpupower frequency-set --governor performance" if slow else "",
    )  # fmt: skip


def memlock(limit: int) -> Finding:
    """Engines page-lock experts in host memory; CUDA's own page-locking is not limited by it, mlock is."""
    limited = limit != UNLIMITED
    return Finding(
        check="memlock limit", state="advice" if limited else "ok",
        found=f"{limit / 2**20:,.0f} MiB" if limited else "none",
        advice="ulimit -l unlimited (or memlock in /etc/security/limits.conf), for engines that lock their experts"
        if limited else "",
    )  # fmt: skip


def disk(results: Path) -> Finding:
    there = results.absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    state: State = "ok"
    advice = ""
    if free < LITTLE_DISK:
        state, advice = "advice", "free some space, or set results=<a folder with more>"
    if free < LITTLER_DISK:
        state = "failed"
    return Finding(check="disk", state=state, found=f"{free / 2**30:,.1f} GiB free at {there}", advice=advice)


def compiler() -> Finding:
    """Makes the forcing library, as the first run with ``engine.forcing=shim`` would."""
    try:
        path = library()
    except EngineError as error:
        return Finding(check="forcing library", state="advice", found="can't be made", advice=str(error))
    return Finding(check="forcing library", state="ok", found=f"made ({path.name})")
