"""One reading of the kernel's counters (Linux): CPU, memory, processes, control group, CPU energy.

Counters stay counters: a rate is the difference of two samples over their time. What can't be read is left out of a
sample, and ``absent`` says why.
"""

import math
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

Sample = dict[str, float | int]
PROC, SYS = Path("/proc"), Path("/sys")
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_LOOK_EVERY_S = 10.0
_CORES_ASKED = 8
"""Of a large machine, evenly spread: some kernels interrupt a core to tell its clock."""


class Machine:
    """CPU time, clocks, throttling and memory of the whole machine."""

    def __init__(self, proc: Path = PROC, sys: Path = SYS) -> None:
        self._proc = proc
        cores = sorted((sys / "devices/system/cpu").glob("cpu[0-9]*"))
        asked = cores[:: -(-len(cores) // _CORES_ASKED) or 1]
        self._clocks = [core / "cpufreq/scaling_cur_freq" for core in asked]
        self._throttles = [core / "thermal_throttle/core_throttle_count" for core in asked]

    def read(self) -> Sample:
        """CPU seconds since boot over all cores, busy and stolen by other virtual machines; some cores' clocks."""
        with (self._proc / "stat").open() as file:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
        sample: Sample = {
            "cpu_busy_s": (user + nice + system + irq + softirq) / _TICKS,
            "cpu_steal_s": steal / _TICKS,
        }
        if clocks_khz := _numbers(self._clocks):
            sample["cpu_mhz"] = sum(clocks_khz) / len(clocks_khz) / 1e3
        if throttles := _numbers(self._throttles):
            sample["cpu_throttles"] = sum(throttles)
        for line in _lines(self._proc / "meminfo"):
            if line.startswith("MemAvailable:"):
                sample["memory_available_bytes"] = int(line.split()[1]) * 1024
        return sample


class Processes:
    """Processes and what they started.

    Who started whom is looked up now and then, as it takes longer than all else here: 10 ms where a thousand
    processes run. One that starts and ends in between still counts, in its parent's time.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = str(proc)
        self._children: dict[int, list[int]] = {}
        self._looked_s = -math.inf

    def look_again(self) -> None:
        """At the next reading."""
        self._looked_s = -math.inf

    def read(self, root: int) -> Sample:
        """CPU seconds (with those of children that have ended), resident bytes and number of ``root`` and all below.

        Nothing when it is gone.
        """
        if time.monotonic() - self._looked_s >= _LOOK_EVERY_S:
            self._children = {}
            for pid, parent in self._all():
                self._children.setdefault(parent, []).append(pid)
            self._looked_s = time.monotonic()
        cpu_ticks = resident_pages = processes = 0
        for pid in self._below(root):
            stat, memory = self._file(pid, "stat"), self._file(pid, "statm")
            if stat and memory:
                # pid (command) state ppid …; utime, stime, cutime and cstime are fields 14 to 17.
                cpu_ticks += sum(map(int, stat[stat.rindex(b")") + 2 :].split()[11:15]))
                resident_pages += int(memory.split()[1])
                processes += 1
        if not processes:
            return {}
        return {"cpu_s": cpu_ticks / _TICKS, "rss_bytes": resident_pages * _PAGE, "processes": processes}

    def _below(self, root: int) -> list[int]:
        found = [root]
        for pid in found:
            found += self._children.get(pid, [])
        return found

    def _all(self) -> Iterator[tuple[int, int]]:
        """Each process and its parent."""
        for name in os.listdir(self._proc):  # noqa: PTH208 a Path for each of a thousand processes costs
            if name.isdigit() and (stat := self._file(int(name), "stat")):
                # The command may hold blanks and brackets.
                yield int(name), int(stat[stat.rindex(b")") + 2 :].split(None, 2)[1])

    def _file(self, pid: int, name: str) -> bytes | None:
        try:
            with open(f"{self._proc}/{pid}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 as above
                return file.read()
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it ended meanwhile, or is hidden
            return None


def control_group(pid: int, proc: Path = PROC, sys: Path = SYS) -> Sample:
    """The process's control group (version 2), where it is not the root: a container's, a service's."""
    path = next((line[3:].strip() for line in _lines(proc / str(pid) / "cgroup") if line.startswith("0::")), "/")
    folder = sys / "fs/cgroup" / path.lstrip("/")
    sample: Sample = {}
    if path == "/":
        return sample
    for line in _lines(folder / "cpu.stat"):
        name, _, value = line.partition(" ")
        if name in ("usage_usec", "throttled_usec"):
            sample["cgroup_cpu_s" if name == "usage_usec" else "cgroup_throttled_s"] = int(value) / 1e6
    for memory_bytes in _numbers([folder / "memory.current"]):
        sample["cgroup_memory_bytes"] = memory_bytes
    return sample


class CpuEnergy:
    """Joules that the CPU packages have used since the first reading (RAPL, ``/sys/class/powercap``)."""

    def __init__(self, sys: Path = SYS) -> None:
        zones = (sys / "class/powercap").glob("intel-rapl:*")  # AMD's have that name too
        self._packages = [zone for zone in sorted(zones) if _name(zone).startswith("package")]
        self.absent: str | None = None
        if not self._packages:
            self.absent = "this machine shows no CPU energy counter (RAPL)"
        elif len(_numbers(zone / "energy_uj" for zone in self._packages)) < len(self._packages):
            self.absent = f"{self._packages[0] / 'energy_uj'} may not be read; chmod a+r it as root"
            self._packages = []
        self._wraps_uj = [(_numbers([zone / "max_energy_range_uj"]) or [0])[0] for zone in self._packages]
        self._last_uj: list[int] = []
        self._total_uj = 0

    def read(self) -> Sample:
        now_uj = _numbers(zone / "energy_uj" for zone in self._packages)
        if not now_uj or len(now_uj) != len(self._packages):
            return {}
        for before, after, wrap in zip(self._last_uj, now_uj, self._wraps_uj, strict=False):
            self._total_uj += after - before if after >= before else after + wrap - before
        self._last_uj = now_uj
        return {"cpu_energy_j": self._total_uj / 1e6}


def _name(zone: Path) -> str:
    return "".join(_lines(zone / "name")[:1])


def _numbers(paths: Iterable[Path]) -> list[int]:
    found = []
    for path in paths:
        try:
            found.append(int(path.read_bytes()))
        except (OSError, ValueError):
            continue
    return found


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
