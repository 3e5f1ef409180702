"""What is kept of telemetry, what is computed from it, and the process that samples."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replay.record import read_result
from replay.telemetry.energy import by_session, growth, integral, series
from replay.telemetry.recorder import Recorder
from replay.telemetry.settings import TelemetrySettings
from replay.telemetry.store import LINES_FILE, PARQUET_FILE, Telemetry, read, settle
from replay.watch import pcie_link, sampler_cpu_share

S = 1_000_000_000


# -- energy ---------------------------------------------------------------------------------------------------------


def ramp() -> list[dict[str, float]]:
    """Power rises by 10 W a second from 100 W; the counter grows by 50 J a second."""
    return [{"t_ns": t * S, "gpu0_power_w": 100 + 10.0 * t, "cpu_energy_j": 50.0 * t} for t in range(6)]


def test_power_is_integrated_between_the_stamps() -> None:
    # From 1.5 s to 3.5 s: 115 W to 135 W, on average 125 W.
    assert integral(series(ramp(), "gpu0_power_w"), (3 * S // 2, 7 * S // 2), 4 * S) == pytest.approx(250.0)
    assert growth(series(ramp(), "cpu_energy_j"), (3 * S // 2, 7 * S // 2), 4 * S) == pytest.approx(100.0)
    # Shorter than a sampling interval.
    assert integral(series(ramp(), "gpu0_power_w"), (S // 10, S // 5), 4 * S) == pytest.approx(10.15)


def test_a_session_that_samples_do_not_cover_has_no_energy() -> None:
    assert integral(series(ramp(), "gpu0_power_w"), (4 * S, 6 * S), 4 * S) is None
    gap = [row for row in ramp() if row["t_ns"] in (0, 5 * S)]
    assert integral(series(gap, "gpu0_power_w"), (S, 2 * S), 4 * S) is None


def test_energy_is_the_sum_over_gpus_and_none_when_one_is_not_known() -> None:
    rows = [{**row, "gpu1_power_w": 10.0} for row in ramp()]
    found = by_session(Telemetry(rows=rows, absent={}, every_s=1.0), {"a": (0, 2 * S), "b": (4 * S, 9 * S)})
    assert found == {"a": {"gpu_j": pytest.approx(240.0), "cpu_j": 100.0}, "b": {"gpu_j": None, "cpu_j": None}}


def test_without_any_reading_of_power_there_is_no_energy() -> None:
    assert by_session(Telemetry(rows=[{"t_ns": 0}, {"t_ns": S}], absent={}, every_s=1.0), {"a": (0, S)}) is None


def test_the_link_under_load_is_the_fastest_that_was_seen() -> None:
    rows = [{"t_ns": t, "gpu0_pcie_gen": gen, "gpu0_pcie_width": 16} for t, gen in enumerate((1, 4, 3))]
    assert pcie_link(Telemetry(rows=rows, absent={}, every_s=1.0)) == {"gpu0_pcie_gen": 4, "gpu0_pcie_width": 16}


# -- what is kept ---------------------------------------------------------------------------------------------------


def lines(folder: Path, *rows: dict[str, Any], end: str = "") -> None:
    head = {"absent": {"gpu": "none here"}, "every_s": 0.5}
    (folder / LINES_FILE).write_text("".join(json.dumps(row) + "\n" for row in (head, *rows)) + end)


def test_a_killed_run_is_read_but_for_the_line_that_was_cut(tmp_path: Path) -> None:
    lines(tmp_path, {"t_ns": 1, "a": 2.0}, {"t_ns": 2, "b": 3.0}, end='{"t_ns": 3, "a"')
    found = read(tmp_path)
    assert found.rows == [{"t_ns": 1, "a": 2.0}, {"t_ns": 2, "b": 3.0}]
    assert (found.absent, found.every_s) == ({"gpu": "none here"}, 0.5)


def test_a_kill_at_any_byte_costs_one_sample_and_the_next_sampler_writes_on(tmp_path: Path) -> None:
    lines(tmp_path, {"t_ns": 1, "a": 2.0}, {"t_ns": 2, "b": 3.0})
    whole = (tmp_path / LINES_FILE).read_bytes()
    later = b'\n{"absent": {}, "every_s": 0.5}\n{"t_ns": 3}\n'
    for cut in range(len(whole) + 1):
        (tmp_path / LINES_FILE).write_bytes(whole[:cut] + later)
        stamps = [row["t_ns"] for row in read(tmp_path).rows]
        complete = sum(whole[:cut].count(row) for row in (b'"a": 2.0}', b'"b": 3.0}'))
        assert stamps == [*[1, 2][:complete], 3]


def test_parquet_holds_the_same_and_absent_values_stay_absent(tmp_path: Path) -> None:
    import pyarrow.parquet

    lines(tmp_path, {"t_ns": 1, "a": 2.0}, {"t_ns": 2, "b": 3.0})
    before = read(tmp_path)
    assert settle(tmp_path) == before
    assert not (tmp_path / LINES_FILE).exists()
    assert read(tmp_path) == before
    table = pyarrow.parquet.read_table(tmp_path / PARQUET_FILE)
    assert table["a"].to_pylist() == [2.0, None]


def test_a_later_command_adds_to_what_is_there_and_nothing_counts_twice(tmp_path: Path) -> None:
    lines(tmp_path, {"t_ns": 1}, {"t_ns": 2})
    settle(tmp_path)
    lines(tmp_path, {"t_ns": 2}, {"t_ns": 3})  # killed between the two steps: the lines were still there
    assert [row["t_ns"] for row in settle(tmp_path).rows] == [1, 2, 3]


def test_an_empty_folder_holds_no_samples(tmp_path: Path) -> None:
    assert settle(tmp_path) == Telemetry(rows=[], absent={}, every_s=None)
    assert list(tmp_path.iterdir()) == []


# -- the process ----------------------------------------------------------------------------------------------------


def wait_until(met: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not met():
        assert time.monotonic() < until
        time.sleep(0.02)


def sampled(folder: Path) -> int:
    path = folder / LINES_FILE
    return max(0, path.read_bytes().count(b"\n") - 1) if path.exists() else 0


def test_the_sampler_follows_an_engine_and_ends_when_told(tmp_path: Path, worker: subprocess.Popen[bytes]) -> None:
    recorder = Recorder(tmp_path, TelemetrySettings(every_s=0.05))
    recorder.start()
    wait_until(lambda: sampled(tmp_path) >= 2)
    recorder.follow({"pid": worker.pid, "url": "http://127.0.0.1:9"})
    wait_until(lambda: "engine_pid" in read(tmp_path).rows[-1])
    recorder.stop()
    assert recorder.error is None
    first, *_, last = settle(tmp_path).rows
    assert first["harness_pid"] == os.getpid()
    assert last["engine_pid"] == worker.pid
    assert last["engine_rss_bytes"] > 0
    assert last["run_cpu_s"] >= last["engine_cpu_s"]
    stamps = [row["t_ns"] for row in read(tmp_path).rows]
    assert stamps == sorted(stamps)
    assert abs(stamps[-1] - time.perf_counter_ns()) < 5 * S


def test_a_sampler_that_dies_fails_nothing_and_is_named(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "no such folder", TelemetrySettings())
    recorder.start()
    recorder.stop()
    recorder.follow({"pid": 1, "url": ""})
    assert "FileNotFoundError" in str(recorder.error)


def test_the_sampler_ends_with_its_harness(tmp_path: Path) -> None:
    start = (
        "import sys, time; from pathlib import Path; from replay.telemetry.recorder import Recorder; "
        "from replay.telemetry.settings import TelemetrySettings\n"
        "r = Recorder(Path(sys.argv[1]), TelemetrySettings(every_s=0.05)); r.start()\n"
        "print(r._sampler.pid, flush=True); time.sleep(60)"
    )
    harness = subprocess.Popen([sys.executable, "-c", start, str(tmp_path)], stdout=subprocess.PIPE)
    assert harness.stdout is not None
    pid = int(harness.stdout.readline())
    wait_until(lambda: sampled(tmp_path) >= 1)
    harness.send_signal(signal.SIGKILL)
    harness.wait()
    harness.stdout.close()
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])
    assert read(tmp_path).rows


def test_a_sampler_costs_what_it_says() -> None:
    rows = [
        {"t_ns": 0, "sampler_cpu_s": 0.05, "harness_pid": 7},
        {"t_ns": 10 * S, "sampler_cpu_s": 0.07, "harness_pid": 7},
        {"t_ns": 99 * S, "sampler_cpu_s": 0.04, "harness_pid": 8},  # a later command went on with the run
        {"t_ns": 109 * S, "sampler_cpu_s": 0.06, "harness_pid": 8},
    ]
    assert sampler_cpu_share(Telemetry(rows=rows, absent={}, every_s=1.0)) == pytest.approx(0.002)
    assert sampler_cpu_share(Telemetry(rows=rows[1:3], absent={}, every_s=1.0)) is None


def test_an_interval_that_is_none_is_refused(replay: Callable[..., Any], fake: Callable[..., list[str]]) -> None:
    done = replay(*fake(), "telemetry.every_s=0")
    assert done.code == 2
    assert "telemetry.every_s=0 must be above 0" in done.complaint


def test_a_run_keeps_its_telemetry_and_can_do_without(
    replay: Callable[..., Any], fake: Callable[..., list[str]], runs: Callable[[], list[Path]]
) -> None:
    done = replay("-m", *fake(), "telemetry.every_s=0.05,null")
    assert done.code == 0, done.err
    by_setting = {read_result(run)["config"]["telemetry"]["every_s"]: run for run in runs()}
    kept = read_result(by_setting[0.05])["telemetry"]
    assert kept["file"] == PARQUET_FILE
    assert kept["samples"] == len(read(by_setting[0.05]).rows) >= 2
    assert any("engine_cpu_s" in row for row in read(by_setting[0.05]).rows)
    without = read_result(by_setting[None])
    assert without["telemetry"]["absent"] == {"all": "telemetry.every_s=null"}
    assert not list(by_setting[None].glob("telemetry*"))
    untold = {check["name"]: check["value"] for check in without["validity"] if check["ok"] is None}
    assert "telemetry.every_s=1" in untold["background load"]
