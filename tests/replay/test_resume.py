"""What is left of a killed run, what is done again, and what refuses to be gone on with."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.base import EngineError
from engines.settings import EngineSettings
from replay.attempts import Queue
from replay.batch import BATCH_FILE, hidden, restored
from replay.model import ModelSettings
from replay.progress import Progress
from replay.record import RESULT_FILE, TURNS_FILE, TurnRecord, read_result, read_turns
from replay.redact import redact
from replay.resume import Earlier, RefusedError
from replay.run import Run, execute
from replay.telemetry.settings import TelemetrySettings
from workloads.load import Workload
from workloads.session import Session, Turn
from workloads.settings import WorkloadSettings

Command = Callable[..., Any]
Fake = Callable[..., list[str]]
Runs = Callable[[], list[Path]]
Due = Callable[[], int]

ONE = Turn(kind="first", delta_ids=(1,), output_ids=(2,))
SESSIONS = tuple(Session(session_id=name, source="test", turns=(ONE,) * 3) for name in "abc")
WORKLOAD = Workload(name="w", sessions=SESSIONS, content_hash="0", losses={}, vocab_size=10)


def turn(session: str, number: int, *, attempt: int = 0, status: str = "ok") -> TurnRecord:
    return TurnRecord(
        engine="fake",
        session_id=session,
        turn=number,
        kind="first",
        attempt=attempt,
        status=status,
        prompt_tokens=1,
        new_tokens=1,
        output_tokens=1,
        due_ns=0,
    )


def test_a_session_is_complete_when_its_newest_attempt_is() -> None:
    turns = [
        *[turn("a", number) for number in range(3)],
        *[turn("b", number) for number in range(2)],
        turn("c", 0),
        turn("c", 1, status="cut"),
        *[turn("c", number, attempt=1) for number in range(3)],
    ]
    earlier = Earlier(turns=tuple(turns))
    assert earlier.complete(WORKLOAD) == {"a", "c"}
    assert earlier.attempts() == {"a": 1, "b": 1, "c": 2}
    failed_again = Earlier(turns=(*turns, turn("a", 0, attempt=1, status="cut")))
    assert failed_again.complete(WORKLOAD) == {"c"}


def test_what_is_complete_does_not_wait_and_attempts_are_counted_on() -> None:
    queue = Queue(SESSIONS, retries=1, attempts={"a": 1, "b": 3}, done=frozenset("a"))
    left = [queue.take() for _ in range(len(queue))]
    assert [(item.session.session_id, item.attempt, item.number) for item in left] == [("b", 3, 1), ("c", 0, 2)]


@given(st.lists(st.sampled_from(["take", "fail", "die"]), max_size=30), st.integers(0, 2))
def test_no_session_is_lost_and_no_attempt_is_counted_twice(fates: list[str], retries: int) -> None:
    queue = Queue(SESSIONS, retries=retries, attempts={}, done=frozenset())
    seen: list[tuple[str, int]] = []
    ended: list[str] = []
    for fate in fates:
        if not queue:
            break
        attempt = queue.take()
        seen.append((attempt.session.session_id, attempt.attempt))
        if fate == "take" or not queue.failed(attempt, counts=fate == "fail"):
            ended.append(attempt.session.session_id)
    assert len(set(seen)) == len(seen)
    waiting = [queue.take().session.session_id for _ in range(len(queue))]
    assert sorted(ended + waiting) == ["a", "b", "c"]


COMMAND = "{python} -m engines.fake --port {port} --prefill-ms 0 --prefill-ms-per-token 0 --decode-ms 0"
ASKED = Run(
    engine=EngineSettings(
        name="fake", label="Fake", dialect="ostinato", forcing="field", model_format="none", command=COMMAND.split()
    ),
    workload=WorkloadSettings(name="synthetic", format="synthetic", sessions=3, turns=3),
    model=ModelSettings(name="none"),
    folder=Path(),
    telemetry=TelemetrySettings(every_s=None),
)


def run(folder: Path, **changes: Any) -> None:
    execute(replace(ASKED, folder=folder, **changes), Progress(io.StringIO()))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended well: three sessions of three turns."""
    folder = tmp_path_factory.mktemp("finished")
    run(folder)
    return folder


@pytest.fixture
def killed(finished: Path, tmp_path: Path) -> Path:
    """The same, killed inside its sixth turn, as ``kill -9`` leaves it."""
    lines = (finished / TURNS_FILE).read_bytes().splitlines(keepends=True)
    (tmp_path / TURNS_FILE).write_bytes(b"".join(lines[:5]) + lines[5][:40])
    result = read_result(finished)
    first = orjson.loads(lines[0])["session_id"]
    result |= {"status": "running", "sessions": {first: "complete"}, "validity": []}
    (tmp_path / RESULT_FILE).write_bytes(orjson.dumps(result))
    return tmp_path


def test_the_complete_session_is_kept_and_the_cut_one_is_done_again_from_its_first_turn(killed: Path) -> None:
    before = list(read_turns(killed))
    clock = read_result(killed)["clock"]
    run(killed, resume=True)
    after = list(read_turns(killed))
    assert after[:5] == before
    order = list(dict.fromkeys(record.session_id for record in after))
    assert [(order.index(record.session_id), record.attempt, record.turn) for record in after[5:]] == [
        *[(1, 1, number) for number in range(3)],
        *[(2, 0, number) for number in range(3)],
    ]
    result = read_result(killed)
    assert result["status"] == "complete"
    assert list(result["sessions"].values()) == ["complete"] * 3
    assert result["clock"] == clock
    assert len(result["resumed"]) == 1
    assert {check["name"]: check["ok"] for check in result["validity"]}["tokens verified"]


def test_a_run_of_which_only_the_end_is_missing_starts_no_engine(finished: Path, tmp_path: Path) -> None:
    (tmp_path / TURNS_FILE).write_bytes((finished / TURNS_FILE).read_bytes())
    (tmp_path / RESULT_FILE).write_bytes(orjson.dumps(read_result(finished) | {"status": "running"}))
    run(tmp_path, resume=True)
    assert not (tmp_path / "server.log").exists()
    result = read_result(tmp_path)
    assert result["status"] == "complete"
    assert result["engine"]["server"] == read_result(finished)["engine"]["server"]


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "workload": (
        {"workload": WorkloadSettings(name="synthetic", format="synthetic", sessions=3, turns=3, seed=1)},
        r"workload\.hash was [0-9a-f]+…?, is [0-9a-f]+",
    ),
    "engine": ({"engine": replace(ASKED.engine, threads=7)}, r"engine\.threads was 2, is 7"),
    "repeat": ({"repeat": 1}, r"repeat was 0, is 1"),
}


@pytest.mark.parametrize(("changes", "message"), CHANGES.values(), ids=CHANGES)
def test_a_change_is_named_and_nothing_is_touched(killed: Path, changes: dict[str, Any], message: str) -> None:
    before = {path.name: path.read_bytes() for path in killed.iterdir()}
    with pytest.raises(RefusedError, match=message):
        run(killed, resume=True, **changes)
    assert {path.name: path.read_bytes() for path in killed.iterdir()} == before


def test_the_setting_that_changed_the_workload_is_named_and_no_report_is_written(
    replay: Command, fake: Fake, runs: Runs
) -> None:
    assert replay(*fake(), "telemetry.every_s=null").code == 0
    (folder,) = runs()
    above = folder.parent
    (folder / RESULT_FILE).write_bytes(orjson.dumps(read_result(folder) | {"status": "running"}))
    (above / "report.html").unlink()
    before = {path: path.read_bytes() for path in above.rglob("*") if path.is_file()}
    done = replay(f"resume={above}", "workload.max_turns=2")
    assert done.code == 2
    assert "the workload differs: workload.max_turns was null, is 2; workload.hash was " in done.complaint
    assert {path: path.read_bytes() for path in above.rglob("*") if path.is_file()} == before


def test_another_machine_is_named(killed: Path) -> None:
    result = read_result(killed)
    result["environment"]["cpu"] = "Z80"
    (killed / RESULT_FILE).write_bytes(orjson.dumps(result))
    with pytest.raises(RefusedError, match=r"environment\.cpu was Z80, is "):
        run(killed, resume=True)


def test_a_missing_workload_does_not_cost_the_earlier_result(killed: Path) -> None:
    before = (killed / RESULT_FILE).read_bytes()
    with pytest.raises(EngineError, match=r"set engine\.context="):
        run(killed, resume=True, engine=replace(ASKED.engine, context=10))
    assert (killed / RESULT_FILE).read_bytes() == before


@given(st.floats(0, 1))
@settings(max_examples=4, deadline=None)
def test_a_run_killed_at_any_byte_ends_with_every_turn_once(
    finished: Path, tmp_path_factory: pytest.TempPathFactory, cut: float
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    whole = (finished / TURNS_FILE).read_bytes()
    (folder / TURNS_FILE).write_bytes(whole[: round(cut * len(whole))])
    (folder / RESULT_FILE).write_bytes(orjson.dumps(read_result(finished) | {"status": "running"}))
    run(folder, resume=True)
    turns = list(read_turns(folder))
    last = {record.session_id: record.attempt for record in turns}
    counted = sorted((r.session_id, r.turn) for r in turns if r.attempt == last[r.session_id])
    assert counted == sorted((r.session_id, r.turn) for r in read_turns(finished))
    assert len({(r.session_id, r.attempt, r.turn) for r in turns}) == len(turns)


def test_kill_9_and_resume(replay: Command, fake: Fake, runs: Runs, tmp_path: Path) -> None:
    words = [word for word in fake() if "decode_ms=" not in word]
    words += ["engine.options.decode_ms=2", "telemetry.every_s=null", "report=null"]
    process = subprocess.Popen(
        [sys.executable, "-m", "replay.cli", *words],
        cwd=tmp_path,
        env=dict(os.environ),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until_s = time.monotonic() + 120
        while sum(path.read_bytes().count(b"\n") for path in tmp_path.rglob(TURNS_FILE)) < 4:
            assert time.monotonic() < until_s
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    (folder,) = runs()
    assert read_result(folder)["status"] == "running"
    done = replay(f"resume={folder.parent}")
    assert done.code == 0, done.err
    result = read_result(folder)
    assert result["status"] == "complete"
    assert result["config"]["engine"]["options"]["decode_ms"] == "2"
    assert set(result["sessions"].values()) == {"complete"}
    assert {record.attempt for record in read_turns(folder)} >= {0, 1}
    again = replay(f"resume={folder}")
    assert again.code == 0
    assert "1 of 1 runs are complete" in again.err


def test_a_sweep_runs_what_is_missing_and_leaves_what_is_finished(
    replay: Command, fake: Fake, runs: Runs, due: Due
) -> None:
    sweep = ["-m", *fake(), "repeat=0,1,2", "workload.sessions=1", "telemetry.every_s=null", "report=null"]
    assert replay(*sweep).code == due()
    first, second, third = runs()
    whole = (first / TURNS_FILE).read_bytes()
    (second / TURNS_FILE).write_bytes(b"")
    (second / RESULT_FILE).unlink()
    for path in third.iterdir():
        path.unlink()
    third.rmdir()
    done = replay("-m", f"resume={first.parent}")
    assert done.code == due(), done.err
    assert "1 of 3 runs are complete" in done.err
    assert (first / TURNS_FILE).read_bytes() == whole
    assert [len(list(read_turns(folder))) for folder in runs()] == [3, 3, 3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resume=nowhere"], r"nowhere: no batch\.json or result\.json there"),
        (["-m", "resume=nowhere"], r"nowhere: no batch\.json or result\.json there"),
        (["--cfg", "job", "resume=nowhere"], "--cfg does not go with resume="),
        (["resume={run}", "engine.threads=many"], "many"),
        (["resume={run}", "engine.colour=red"], "colour"),
        (["resume={run}", "engine=llamacpp"], "engine=llamacpp does not go with resume=<folder>, whose choices"),
        (["resume={run}", "+experiment=quickstart"], "+experiment=quickstart does not go with resume="),
    ],
)
def test_what_cant_be_resumed_is_one_line(
    replay: Command, killed: Path, finished: Path, words: list[str], message: str
) -> None:
    result = read_result(killed)
    result["config"] |= {"report": None, "engine": result["engine"]["settings"]}
    (killed / RESULT_FILE).write_bytes(orjson.dumps(result))
    before = {path.name: path.read_bytes() for path in killed.iterdir()}
    done = replay(*[word.format(run=killed) for word in words])
    assert done.code == 2
    assert message.replace("\\", "") in done.complaint
    assert {path.name: path.read_bytes() for path in killed.iterdir() if path.name in before} == before


def test_settings_are_restored_from_their_redacted_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "ada"
    (home / "model").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOGNAME", "ada")
    (tmp_path / "scratch" / "ada").mkdir(parents=True)
    config = {"model": {"path": str(home / "model")}, "more": [str(tmp_path / "scratch" / "ada"), "plain", 3, None]}
    assert redact(config) != config
    assert restored(redact(config)) == config


def test_a_secret_has_to_be_typed_again() -> None:
    written = redact({"engine": {"env": {"HF_TOKEN": "abc", "OMP_WAIT_POLICY": "passive"}}})
    assert hidden(written) == ["engine.env.HF_TOKEN"]


def test_the_batch_file_lists_the_runs_in_the_order_they_ran(
    replay: Command, fake: Fake, runs: Runs, due: Due
) -> None:
    names = "engine.label=A,B"
    sweep = ["-m", *fake(), "workload.sessions=1", "workload.turns=1", names, "repeat=0,1"]
    done = replay(*sweep, "order.engines=interleaved", "telemetry.every_s=null", "report=null")
    assert done.code == due(), done.err
    rows = orjson.loads((runs()[0].parent / BATCH_FILE).read_bytes())["rows"]
    assert [row["folder"] for row in rows] == [
        f"fake,engine.label={label},repeat={repeat}" for label, repeat in ("A0", "B0", "B1", "A1")
    ]
    started = [read_result(runs()[0].parent / row["folder"])["clock"]["wall_ns"] for row in rows]
    assert started == sorted(started)
    assert " · ".join(row["folder"] for row in rows) in done.err
