"""Which cores the pool's threads are pinned to."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

_SYSTEM = Path("/sys/devices/system")


def choose_cores(threads: int, available: Iterable[int] | None = None, *, system: Path = _SYSTEM) -> list[int]:
    """One core a thread: over the NUMA nodes in turn, so that few threads still read through every node's memory
    channels, and a core's second hardware thread only when every core has one. Fewer cores than threads: again from
    the first.

    Args:
        available: default the cores this process may run on.
    """
    allowed = sorted(os.sched_getaffinity(0) if available is None else available)
    nodes = cores_by_node(allowed, system=system)
    order: list[int] = []
    for second in (False, True):
        queues = [[core for core in cores if _is_second(core, allowed, system) == second] for cores in nodes.values()]
        while any(queues):
            order += [queue.pop(0) for queue in queues if queue]
    return [order[i % len(order)] for i in range(threads)]


def cores_by_node(allowed: Iterable[int], *, system: Path = _SYSTEM) -> Mapping[int, list[int]]:
    """NUMA node → those of the cores that are its own; one node 0 where the system shows none."""
    wanted = sorted(allowed)
    nodes: dict[int, list[int]] = {}
    for folder in sorted((system / "node").glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        cores = _numbers(folder / "cpulist")
        if held := [core for core in wanted if core in cores]:
            nodes[int(folder.name[4:])] = held
    if sum(map(len, nodes.values())) != len(wanted):
        return {0: wanted}
    return nodes


def _is_second(core: int, allowed: list[int], system: Path) -> bool:
    siblings = _numbers(system / "cpu" / f"cpu{core}" / "topology" / "thread_siblings_list")
    return any(other in siblings for other in allowed if other < core)


def _numbers(path: Path) -> set[int]:
    """``0-3,8`` as its numbers; none where there is no such file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return set()
    ranges = (part.split("-") for part in text.split(",") if part)
    return {number for ends in ranges for number in range(int(ends[0]), int(ends[-1]) + 1)}
