"""joblib and submitit on this machine."""

import importlib
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.slow

Start = Callable[..., Any]
PACKAGES = {"joblib": ("joblib", "hydra_joblib_launcher"), "submitit_local": ("submitit", "hydra_submitit_launcher")}


@pytest.fixture(params=PACKAGES)
def launcher(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    for package in (PACKAGES[name][0], f"hydra_plugins.{PACKAGES[name][1]}"):
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            pytest.skip(f"{package} is not here: pip install '.[sweeps]'")
    return name


# What a server says first is in server.log: with how many threads it may compute.
TELLS_THREADS = (
    "engine.command=['{python}','-c',"
    '\'import os,runpy,sys; print("threads",os.environ.get("OMP_NUM_THREADS")); '
    'sys.argv=["fake",*sys.argv[1:]]; runpy.run_module("engines.fake",run_name="__main__")\','
    "--port,'{port}',--decode-ms,'{decode_ms}',--sequences,'{sequences}']"
)


def test_no_two_runs_overlap_a_killed_worker_is_a_failed_row_and_the_others_are_done(
    launcher: str, sweep: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    running = sweep(f"hydra/launcher={launcher}", TELLS_THREADS, "engine.options.decode_ms=100,0,1,2")
    victim = "fake,engine.options.decode_ms=100"
    running.until(lambda: victim in running.rows() and running.rows()[victim].has_turns)
    os.kill(running.rows()[victim].job["pid"], signal.SIGKILL)
    assert running.wait() == 1, running.err
    rows = running.rows()
    assert len(rows) == 4, running.err
    assert running.overlaps(list(rows.values())) == []
    failed = rows.pop(victim)
    assert failed.result["status"] == "failed"
    assert "the worker that had this run is gone" in failed.result["error"]
    assert {row.result["status"] for row in rows.values()} == {"complete"}, running.err
    assert (failed.folder.parent / "report.html").is_file()
    assert "Traceback" not in running.err
    for row in rows.values():
        assert "threads None" in (row.folder / "server.log").read_text()


def test_one_line_for_each_run_and_none_of_its_own_on_the_terminal(launcher: str, sweep: Start) -> None:
    running = sweep(f"hydra/launcher={launcher}", "repeat=0,1", "engine.options.decode_ms=0", "report=null")
    assert running.wait() == running.due(), running.err
    said = [line for line in running.err.splitlines() if line.startswith("run ")]
    assert len(said) == 2
    assert not [line for line in running.err.splitlines() if line.startswith("fake")]
    for row in running.rows().values():
        assert "checking that it emits forced tokens" in (row.folder / "job.log").read_text()
        assert row.job["status"] == "ended"


def test_a_stopped_sweep_stops_its_runs(launcher: str, sweep: Start) -> None:
    running = sweep(f"hydra/launcher={launcher}", "repeat=0,1,2", "engine.options.decode_ms=100")
    running.stop_at_work()
    assert "Traceback" not in running.err


def test_the_lock_keeps_two_sweeps_apart(launcher: str, sweep: Start) -> None:
    words = ("repeat=0,1", "engine.options.decode_ms=1", "report=null")
    one, other = sweep(f"hydra/launcher={launcher}", "name=one", *words), sweep("name=other", *words)
    assert {one.wait(), other.wait()} <= {0, 1}
    rows = list(one.rows().values())  # of both: they share a folder
    assert {row.result["status"] for row in rows} == {"complete"}
    found = [row for path in one.folder.glob("results/*/*/*/result.json") for row in [type(rows[0])(path.parent)]]
    assert len(found) == 4
    assert one.overlaps(found) == []
