"""The same command again in the same folder: what is there is not run again."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from replay.batch import BATCH_FILE
from replay.record import RESULT_FILE, TURNS_FILE, read_result

Command = Callable[..., Any]
Fake = Callable[..., list[str]]
Runs = Callable[[], list[Path]]
Due = Callable[[], int]

FOLDER = "results/mine/first"


SMALL = ("workload.sessions=1", "workload.turns=2", "telemetry.every_s=null", "report=null")
made: list[Path] = []
"""Where the sweep is that every test begins with, of ``repeat=0,1``; made once, and copied."""


@pytest.fixture
def words(fake: Fake, replay: Command, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of a sweep of two runs, which are there."""
    words = ["-m", *fake(), *SMALL, f"hydra.sweep.dir={FOLDER}"]
    if not made:
        assert replay(*words, "repeat=0,1").code in (0, 1)
        made.append(tmp_path_factory.mktemp("sweep") / "results")
        shutil.copytree(tmp_path / "results", made[0])
    else:
        shutil.copytree(made[0], tmp_path / "results")
    return words


def records(runs: Runs) -> dict[str, bytes]:
    return {folder.name: (folder / TURNS_FILE).read_bytes() for folder in runs()}


def test_a_finished_run_is_not_run_again_and_new_ones_are(
    replay: Command, words: list[str], runs: Runs, due: Due
) -> None:
    before = records(runs)
    assert list(before) == ["fake,repeat=0", "fake,repeat=1"]
    grown = replay(*words, "repeat=0,1,2")
    assert grown.code == due(), grown.err
    assert "resume   2 of 3 runs are complete" in grown.err
    after = records(runs)
    assert list(after) == [*before, "fake,repeat=2"]
    assert {name: after[name] for name in before} == before
    shrunk = replay(*words, "repeat=2")
    assert "resume   1 of 1 runs are complete" in shrunk.err
    rows = orjson.loads((Path(FOLDER) / BATCH_FILE).read_bytes())["rows"]
    assert sorted(row["folder"] for row in rows) == list(after)


def test_a_run_is_known_by_what_it_measures_whatever_its_folder_is_called(
    replay: Command, words: list[str], runs: Runs, due: Due
) -> None:
    threads = read_result(runs()[0])["config"]["engine"]["threads"]
    other = replay(*words, f"engine.threads={threads},{threads + 1}", "repeat=0,1", "retries=2")
    assert other.code == due(), other.err
    assert "resume   2 of 4 runs are complete" in other.err
    assert len(runs()) == 4


def test_a_run_that_was_cut_short_is_gone_on_with(replay: Command, words: list[str], runs: Runs, due: Due) -> None:
    first, second = runs()
    lines = (first / TURNS_FILE).read_bytes().splitlines(keepends=True)
    (first / TURNS_FILE).write_bytes(lines[0] + lines[1][:30])
    (first / RESULT_FILE).write_bytes(orjson.dumps(read_result(first) | {"status": "running", "sessions": {}}))
    whole = (second / TURNS_FILE).read_bytes()
    again = replay(*words, "repeat=0,1")
    assert again.code == due(), again.err
    assert "resume   1 of 2 runs are complete" in again.err
    assert (second / TURNS_FILE).read_bytes() == whole
    assert (first / TURNS_FILE).read_bytes().startswith(lines[0])
    assert read_result(first)["status"] == "complete"


def test_other_settings_in_the_same_folder_are_refused_and_named(
    replay: Command, words: list[str], runs: Runs, due: Due
) -> None:
    before = records(runs)
    done = replay(*words, "repeat=0,1", "workload.seed=9")
    assert done.code == 2
    assert "fake,repeat=0: already holds a run with other settings: workload.seed was 0, is 9" in done.complaint
    assert records(runs) == before


def test_a_setting_changed_on_resume_is_refused_for_what_is_finished_too(
    replay: Command, words: list[str], runs: Runs, due: Due
) -> None:
    before = {folder: (folder / RESULT_FILE).read_bytes() for folder in runs()}
    done = replay(f"resume={FOLDER}", "engine.threads=77")
    assert done.code == 2
    assert "engine.threads was " in done.err
    assert {folder: (folder / RESULT_FILE).read_bytes() for folder in runs()} == before
    harmless = replay(f"resume={FOLDER}", "retries=3")
    assert harmless.code == due()
    assert "2 of 2 runs are complete" in harmless.err


def test_hundreds_of_finished_runs_are_passed_over(replay: Command, words: list[str], runs: Runs, due: Due) -> None:
    (template, other) = runs()
    result, rows = read_result(template), orjson.loads((Path(FOLDER) / BATCH_FILE).read_bytes())
    for number in range(2, 300):
        folder = template.with_name(f"fake,repeat={number}")
        folder.mkdir()
        (folder / TURNS_FILE).write_bytes((template / TURNS_FILE).read_bytes())
        row = {**rows["rows"][0], "folder": folder.name, "config_hash": f"{number:016x}"}
        rows["rows"].append(row)
        (folder / RESULT_FILE).write_bytes(orjson.dumps(result | {"config_hash": row["config_hash"]}))
    (Path(FOLDER) / BATCH_FILE).write_bytes(orjson.dumps(rows))
    (other / RESULT_FILE).unlink()
    (other / TURNS_FILE).unlink()
    done = replay(f"resume={FOLDER}")
    assert done.code == due(), done.err
    assert "resume   299 of 300 runs are complete" in done.err
