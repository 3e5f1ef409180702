"""What is left when the harness is stopped in the middle of a turn."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from analysis.report import write_report
from replay.record import read_result, read_turns
from replay.telemetry import store as telemetry


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """``replay`` on a fake engine that takes 3 ms a token, a few turns in."""
    words = ["engine=fake", "engine.options.decode_ms=3", "workload=synthetic", "workload.sessions=3"]
    process = subprocess.Popen(
        [sys.executable, "-m", "replay.cli", *words],
        cwd=tmp_path,
        env={**os.environ, "OSTINATO_CACHE": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    children: list[psutil.Process] = []
    try:
        wait_until(lambda: lines(tmp_path) >= 2, 30, process)
        children = engines(process)
        yield process
    finally:
        process.kill()
        process.communicate()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()


def wait_until(met: Callable[[], bool], seconds: float, process: subprocess.Popen[str] | None = None) -> None:
    until = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < until
        assert process is None or process.poll() is None, process.communicate()[1]
        time.sleep(0.05)


def lines(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("results/*/*/*/turns.jsonl"))


def engines(harness: subprocess.Popen[str]) -> list[psutil.Process]:
    """The harness's children that serve, and what they started."""
    found = psutil.Process(harness.pid).children(recursive=True)
    assert any("engines.fake" in child.cmdline() for child in found)
    return found


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_after_kill_9_no_engine_lives_and_the_records_are_whole(
    harness: subprocess.Popen[str], tmp_path: Path
) -> None:
    children = engines(harness)
    harness.kill()
    wait_until(lambda: all(gone(child) for child in children), 5)
    (turns,) = tmp_path.glob("results/*/*/*/turns.jsonl")
    records = list(read_turns(turns.parent))
    assert len(records) >= 2
    assert {record.status for record in records} == {"ok"}
    assert telemetry.read(turns.parent).rows


def test_a_killed_run_can_be_analysed_and_says_that_it_was_cut_short(
    harness: subprocess.Popen[str], tmp_path: Path
) -> None:
    harness.kill()
    harness.wait()
    (folder,) = tmp_path.glob("results/*/*")
    page = write_report(folder).read_text()
    assert "<title>INTERRUPTED · synthetic: Fake engine</title>" in page
    assert "killed" in (folder / "summary.md").read_text()
    assert "replay engine=fake engine.options.decode_ms=3 workload=synthetic" in page


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_what_is_done_and_reports_it(
    harness: subprocess.Popen[str], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    children = engines(harness)
    harness.send_signal(number)
    out, err = harness.communicate(timeout=20)
    assert harness.returncode == code, err
    assert "Traceback" not in err
    assert all(gone(child) for child in children)
    (path,) = tmp_path.glob("results/*/*/*/result.json")
    result = read_result(path.parent)
    assert result["status"] == "interrupted"
    assert len(list(read_turns(path.parent))) >= 2
    assert (path.parent.parent / "report.html").is_file()
    assert "report.html" in out
