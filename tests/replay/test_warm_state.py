"""A run leaves what its engine learnt; another may start from it, if development sessions taught it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from engines.state import read_lessons
from replay.record import read_result

Command = Callable[..., Any]
Fake = Callable[..., list[str]]
Runs = Callable[[], list[Path]]
LEARNS = "+engine.env.HEAT='{state}/heat'"
SHORT = ["workload.max_sessions=1", "workload.max_turns=1", "engine.context=200000", "report=null"]


def one_run(replay: Command, fake: Fake, workload: str, *more: str) -> Any:
    return replay(*fake(), LEARNS, f"workload={workload}", *SHORT, *more)


def test_what_development_sessions_taught_starts_a_later_run(replay: Command, fake: Fake, runs: Runs) -> None:
    assert one_run(replay, fake, "synthetic_swe_development", "name=teach").code == 0
    (taught,) = runs()
    (lesson,) = read_lessons(taught / "state")
    assert (lesson.engine, lesson.split) == ("fake", "development")
    assert lesson.workload_hash == read_result(taught)["workload"]["hash"]
    (taught / "state/heat").write_bytes(b"warm")
    done = one_run(replay, fake, "synthetic_swe_heldout", "name=warm", f"engine.state=warm:{taught}/state")
    assert done.code == 0, done.err
    (warm,) = [folder for folder in runs() if folder != taught]
    assert (warm / "state/heat").read_bytes() == b"warm"
    assert [lesson.split for lesson in read_lessons(warm / "state")] == ["development", "held_out"]
    assert read_result(warm)["engine"]["settings"]["state"] == f"warm:{taught}/state"


def test_what_held_out_sessions_taught_starts_none(replay: Command, fake: Fake, runs: Runs, tmp_path: Path) -> None:
    assert one_run(replay, fake, "synthetic_swe_heldout", "name=teach").code == 0
    (taught,) = runs()
    done = one_run(replay, fake, "synthetic_swe_heldout", "name=warm", f"engine.state=warm:{taught}/state")
    assert done.code == 2
    assert "was prepared by held_out (synthetic_swe_heldout)" in done.complaint
    assert runs() == [taught]


def test_an_engine_that_keeps_nothing_leaves_no_state(replay: Command, fake: Fake, runs: Runs) -> None:
    assert replay(*fake(), "report=null").code == 0
    assert not (runs()[0] / "state").exists()


def test_a_start_that_fails_leaves_no_state_behind(replay: Command, fake: Fake, tmp_path: Path) -> None:
    done = one_run(replay, fake, "synthetic_swe_development", "engine.command=[/no/such/server,'{decode_ms}']")
    assert done.code == 2
    assert "/no/such/server" in done.complaint
    assert not list(tmp_path.glob("results/*"))
