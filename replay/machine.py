"""Facts about the machine that a number depends on. None is "could not be read"."""

import hashlib
import os
import platform
from pathlib import Path
from typing import Any

SYS, PROC = Path("/sys"), Path("/proc")


def machine(sys: Path = SYS, proc: Path = PROC) -> dict[str, Any]:
    """CPU, memory, NUMA and kernel, from files alone."""
    cpu = sys / "devices/system/cpu"
    return {
        "machine": _identity(),
        "cpu": _cpu_model(proc),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "cpu_quota_cores": _quota(sys, proc),
        "smt": _text(cpu / "smt/control"),
        "max_mhz": _mhz(cpu / "cpu0/cpufreq/cpuinfo_max_freq"),
        "governor": _text(cpu / "cpu0/cpufreq/scaling_governor"),
        "no_turbo": _text(cpu / "intel_pstate/no_turbo"),
        "numa_nodes": len([*(sys / "devices/system/node").glob("node[0-9]*")]) or None,
        "numa_balancing": _text(proc / "sys/kernel/numa_balancing"),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "huge_pages": _chosen(_text(sys / "kernel/mm/transparent_hugepage/enabled")),
        "kernel": platform.release(),
        "system": _system(),
        "libc": "-".join(platform.libc_ver()) or None,
    }


def _identity() -> str | None:
    """Tells machines apart without naming them (machine-id(5) asks for a hash)."""
    machine_id = _text(Path("/etc/machine-id"))
    return hashlib.sha256(f"ostinato-replay {machine_id}".encode()).hexdigest()[:12] if machine_id else None


def _cpu_model(proc: Path) -> str | None:
    for line in (_text(proc / "cpuinfo") or "").splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip() or None
    return None


def _quota(sys: Path, proc: Path) -> float | None:
    """Cores that a control group (version 2) limits this process to; None without a limit."""
    for line in (_text(proc / "self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            quota, _, period = (_text(sys / "fs/cgroup" / line[3:].lstrip("/") / "cpu.max") or "max").partition(" ")
            return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None
    return None


def _mhz(path: Path) -> float | None:
    khz = _text(path)
    return int(khz) / 1e3 if khz and khz.isdigit() else None


def _chosen(choices: str | None) -> str | None:
    """``always [madvise] never`` → ``madvise``."""
    return choices.partition("[")[2].partition("]")[0] or None if choices else None


def _system() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
