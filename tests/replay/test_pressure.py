"""Background load is as large as asked for, says what it was, and ends with the harness."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from engines.base import EngineError
from replay.pressure import Phase, Pressure, PressureSettings, check
from replay.pressure_worker import Cpu, Memory, keep
from replay.record import PRESSURE_FILE, RecordError, read_pressure


def settings(*phases: Phase) -> PressureSettings:
    return PressureSettings(name="test", phases=list(phases))


def test_half_of_one_core_is_half_of_one_core(tmp_path: Path) -> None:
    before = psutil.Process().children()
    with Pressure(settings(Phase(kind="cpu", level=50)), tmp_path) as pressure:
        (worker,) = set(psutil.Process().children()) - set(before)
        pressure.begin()
        time.sleep(0.1)
        begun_s, before, idle_s = time.monotonic(), worker.cpu_times(), psutil.cpu_times().idle
        time.sleep(0.8)
        after, took_s = worker.cpu_times(), time.monotonic() - begun_s
        idle_s = psutil.cpu_times().idle - idle_s
    share = (after.user + after.system - before.user - before.system) / took_s
    (phase,) = read_pressure(tmp_path)
    assert phase.cpu_share == pytest.approx(share, abs=0.1)
    assert share < 0.6
    if idle_s > 0.5 * took_s:  # a machine whose cores are all taken gives less, and the record says so
        assert share > 0.4


class Counted:
    """A load whose clock is the wall's, and which takes what it is asked for."""

    moved_bytes = 0

    def __init__(self, slowness: float = 1.0) -> None:
        self.asked: list[int] = []
        self._slowness = slowness

    def work(self, ns: int) -> int:
        self.asked.append(ns)
        time.sleep(ns * self._slowness / 1e9)
        return ns


def test_what_could_not_be_worked_is_made_up_for_but_never_in_one_burst() -> None:
    load = Counted(slowness=3.0)
    done = keep(load, 0.9, time.perf_counter_ns() + 100_000_000, threading.Event())
    assert done.busy_share < 0.5
    assert max(load.asked) <= 10_000_000


def test_memory_says_how_much_it_moved() -> None:
    done = keep(Memory(), 1.0, time.perf_counter_ns() + 60_000_000, threading.Event())
    assert done.bytes_per_s is not None
    assert done.bytes_per_s > 1e8


def test_computing_moves_nothing() -> None:
    assert keep(Cpu(), 1.0, time.perf_counter_ns() + 20_000_000, threading.Event()).bytes_per_s is None


def test_phases_say_when_they_really_were(tmp_path: Path) -> None:
    phases = settings(
        Phase(kind="cpu", level=30, start_s=0.05, stop_s=0.1, workers=2),
        Phase(kind="cpu", level=60, start_s=0.12, stop_s=60),
        Phase(kind="cpu", level=90, start_s=60),
    )
    check(phases)
    with Pressure(phases, tmp_path) as pressure:
        zero_ns = time.perf_counter_ns()
        pressure.begin()
        pressure.begin()
        time.sleep(0.25)
    found = sorted(read_pressure(tmp_path), key=lambda record: (record.phase, record.worker))
    assert [(record.phase, record.worker, record.level) for record in found] == [(0, 0, 30), (0, 1, 30), (1, 0, 60)]
    for record in found:
        assert record.stopped_ns is not None
        assert record.started_ns - zero_ns >= phases.phases[record.phase].start_s * 1e9
        assert record.started_ns < record.stopped_ns
    assert found[0].stopped_ns < found[2].started_ns  # type: ignore[operator]


def test_a_run_without_pressure_starts_nothing(tmp_path: Path) -> None:
    before = psutil.Process().children()
    with Pressure(PressureSettings(), tmp_path) as pressure:
        pressure.begin()
        assert set(psutil.Process().children()) <= set(before)
    assert read_pressure(tmp_path) == []


SCRIPT = """
import sys, time
from pathlib import Path
from replay.pressure import Phase, Pressure, PressureSettings
with Pressure(PressureSettings(phases=[Phase(kind="cpu", level=20)]), Path(sys.argv[1])) as pressure:
    pressure.begin()
    print("begun", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_harness_however_that_ends(tmp_path: Path, number: signal.Signals) -> None:
    harness = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert harness.stdout is not None
        assert harness.stdout.readline() == "begun\n"
        (worker,) = psutil.Process(harness.pid).children()
        until_s = time.monotonic() + 5
        while not (tmp_path / PRESSURE_FILE).exists():
            assert time.monotonic() < until_s
            time.sleep(0.01)
        harness.send_signal(number)
        harness.wait()
        worker.wait(timeout=3)
        (phase,) = read_pressure(tmp_path)
        assert phase.stopped_ns is not None
    finally:
        harness.kill()
        harness.communicate()


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        ({"kind": "fan"}, r"phases\[0\]\.kind=fan .* cpu, memory, gpu, pcie"),
        ({"level": 0}, r"phases\[0\]\.level=0"),
        ({"level": 101}, r"phases\[0\]\.level=101"),
        ({"workers": 0}, r"phases\[0\]\.workers=0"),
        ({"start_s": 3, "stop_s": 2}, "stops before it starts"),
    ],
)
def test_a_bad_phase_is_named(phase: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        check(settings(Phase(**{"kind": "cpu", "level": 50, **phase})))


def test_two_phases_of_a_kind_may_follow_but_not_overlap() -> None:
    check(settings(Phase(kind="cpu", level=50, stop_s=1), Phase(kind="cpu", level=90, start_s=1)))
    with pytest.raises(EngineError, match="two of kind cpu overlap from 1 s"):
        check(settings(Phase(kind="cpu", level=50), Phase(kind="cpu", level=90, start_s=1)))


@pytest.mark.parametrize("kind", ["gpu", "pcie"])
def test_without_a_gpu_its_load_is_refused(tmp_path: Path, kind: str) -> None:
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("this machine has an NVIDIA driver")
    with pytest.raises(EngineError, match=rf"pressure of kind {kind} can't be made here: .*; leave its phases out"):
        Pressure(settings(Phase(kind=kind, level=50)), tmp_path).__enter__()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["gpu", "pcie"])
def test_half_of_a_gpus_time_is_half_of_it(tmp_path: Path, kind: str) -> None:
    with Pressure(settings(Phase(kind=kind, level=50)), tmp_path) as pressure:
        pressure.begin()
        time.sleep(0.5)
    (phase,) = read_pressure(tmp_path)
    assert phase.busy_share == pytest.approx(0.5, abs=0.1)
    assert (phase.bytes_per_s is not None) == (kind == "pcie")


def test_a_damaged_line_is_named_and_a_cut_one_passed_over(tmp_path: Path) -> None:
    (tmp_path / PRESSURE_FILE).write_text('{"pha')
    assert read_pressure(tmp_path) == []
    (tmp_path / PRESSURE_FILE).write_text('{"phase": 1}\n')
    with pytest.raises(RecordError, match=r"pressure\.jsonl:1"):
        read_pressure(tmp_path)
