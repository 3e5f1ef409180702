"""Cores for the pool on machines of many shapes."""

import os
from pathlib import Path

from engines.ostinato.cpu.cores import choose_cores, cores_by_node


def machine(root: Path, nodes: dict[int, str], siblings: dict[int, str]) -> Path:
    for node, cores in nodes.items():
        folder = root / "node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cores}\n")
    for core, text in siblings.items():
        folder = root / "cpu" / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{text}\n")
    return root


def test_threads_go_over_the_nodes_in_turn(tmp_path) -> None:
    system = machine(tmp_path, {0: "0-3", 1: "4-7"}, {})
    assert choose_cores(4, range(8), system=system) == [0, 4, 1, 5]
    assert choose_cores(5, [0, 1, 2, 7], system=system) == [0, 7, 1, 2, 0]


def test_second_hardware_threads_come_last(tmp_path) -> None:
    system = machine(tmp_path, {0: "0-3"}, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    assert choose_cores(4, range(4), system=system) == [0, 1, 2, 3]
    system = machine(tmp_path / "beside", {0: "0-3"}, {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"})
    assert choose_cores(4, range(4), system=system) == [0, 2, 1, 3]
    assert choose_cores(2, [1, 3], system=system) == [1, 3]


def test_a_system_that_shows_no_nodes_is_one_node(tmp_path) -> None:
    assert cores_by_node([3, 1], system=tmp_path) == {0: [1, 3]}
    assert choose_cores(2, [3, 1], system=tmp_path) == [1, 3]


def test_this_machine_offers_its_own_cores() -> None:
    chosen = choose_cores(3)
    assert set(chosen) <= os.sched_getaffinity(0)
    assert len(set(chosen)) == min(3, len(os.sched_getaffinity(0)))
