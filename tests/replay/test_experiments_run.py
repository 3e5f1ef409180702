"""Experiments that a machine without a GPU can run, small, on the tiny model: as a user types them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from analysis.gate import EXIT
from analysis.runs import read_runs
from engines.placeholders import used_names
from replay.config import composed

ROOT = Path(__file__).parents[2]
HERE = ["model=tiny", "hardware=this_machine"]

pytestmark = pytest.mark.slow


def replay(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "OSTINATO_CACHE": str(ROOT / ".cache"), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "replay.cli", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def only(folder: Path, name: str) -> Path:
    (found,) = (folder / "results" / name).iterdir()
    return found


def test_the_regression_benchmark_ends_with_the_gates_exit_code(tmp_path: Path) -> None:
    done = replay(tmp_path, "-m", "+experiment=ci_regression")
    assert done.returncode in EXIT.values(), done.stderr[-2000:]
    folder = only(tmp_path, "ci_regression")
    words = ["--gate", "--margin", "5", "--engine", "llamacpp", "--engine", "ik_llamacpp"]
    again = subprocess.run(
        [sys.executable, "-m", "analysis.compare_cli", str(folder), str(folder), *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    # A pass turns into 1 where a run is not valid, which the fake engine's, that the gate does not look at, may be.
    assert done.returncode == again.returncode or (again.returncode, done.returncode) == (0, 1), again.stdout
    assert "ik_llama.cpp against llama.cpp" in done.stdout
    assert "<testsuite" in (folder / "gate.xml").read_text()
    assert {run.result["engine"]["name"]: len(run.folders) for run in read_runs(folder)} == {
        "fake": 2,
        "llamacpp": 2,
        "ik_llamacpp": 2,
    }


def test_the_rows_of_table_3_are_replayed_by_engines_that_run_here(tmp_path: Path) -> None:
    few = ["workload.max_sessions=1", "workload.max_turns=1", "engine.context=32768"]
    done = replay(tmp_path, "+experiment=table3", "engine=fake,llamacpp", *HERE, *few)
    folder = only(tmp_path, "table3")
    found = {(run.result["engine"]["name"], run.result["workload"]["name"]) for run in read_runs(folder)}
    assert len(found) == 4, done.stderr[-2000:]
    assert {run.status for run in read_runs(folder)} == {"complete"}
    page = (folder / "report.html").read_text()
    assert "synthetic_swe_heldout" in page
    assert "synthetic_tau2_heldout" in page


def test_placements_are_compared_on_our_engine(tmp_path: Path) -> None:
    if "placement" not in used_names(composed(["engine=ostinato"]).engine):
        pytest.skip("engine=ostinato takes no placement yet")
    few = ["workload=synthetic", "workload.sessions=1", "workload.turns=2", "placement=layers,ostinato"]
    done = replay(tmp_path, "+experiment=ablation", *few, "++engine.options.slots=32")
    runs = read_runs(only(tmp_path, "ablation"))
    assert len(runs) == 2, done.stderr[-2000:]
    assert {run.status for run in runs} == {"complete"}
