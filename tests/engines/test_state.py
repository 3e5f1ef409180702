"""What an engine may have learnt before a run: nothing, or what development sessions taught it."""

from pathlib import Path

import pytest

from engines.base import EngineError
from engines.settings import EngineSettings
from engines.state import TAUGHT_BY, Lesson, check_state, keeps_state, note_lesson, prepare_state, read_lessons


def settings(state: str = "cold", **changes: object) -> EngineSettings:
    fields = {"name": "buun", "label": "buun", "dialect": "llamacpp", "forcing": "shim", "state": state}
    return EngineSettings(**{**fields, "env": {"LLAMA_CACHE": "{state}"}, **changes})  # type: ignore[arg-type]


def lesson(split: str | None = "development", engine: str = "buun") -> Lesson:
    return Lesson(engine=engine, workload="swe", workload_hash="abc", split=split)


def prepared(folder: Path, *lessons: Lesson) -> str:
    """What a run on those sessions leaves, as a setting."""
    folder.mkdir()
    (folder / "heat.bin").write_bytes(b"warm")
    for one in lessons:
        note_lesson(folder, one)
    return f"warm:{folder}"


def test_a_cold_state_is_an_empty_folder_of_the_runs_own(tmp_path: Path) -> None:
    state = prepare_state(settings(), tmp_path)
    assert state == tmp_path / "state"
    assert list(state.iterdir()) == []


def test_a_start_finds_nothing_that_an_earlier_one_of_the_same_run_learnt(tmp_path: Path) -> None:
    (prepare_state(settings(), tmp_path) / "heat.bin").write_bytes(b"learnt")
    assert list(prepare_state(settings(), tmp_path).iterdir()) == []


def test_a_warm_state_is_a_copy_that_the_run_may_change(tmp_path: Path) -> None:
    warm = prepared(tmp_path / "before", lesson())
    state = prepare_state(settings(warm), tmp_path / "run")
    (state / "heat.bin").write_bytes(b"warmer")
    assert (tmp_path / "before/heat.bin").read_bytes() == b"warm"
    assert prepare_state(settings(warm), tmp_path / "run").joinpath("heat.bin").read_bytes() == b"warm"


def test_what_a_warm_start_learns_adds_to_what_taught_it_before(tmp_path: Path) -> None:
    state = prepare_state(settings(prepared(tmp_path / "before", lesson())), tmp_path / "run")
    note_lesson(state, lesson("held_out"))
    assert [one.split for one in read_lessons(state)] == ["development", "held_out"]
    with pytest.raises(EngineError, match="was prepared by held_out"):
        check_state(settings(f"warm:{state}"))


def test_screening_sessions_may_prepare_a_state_as_they_are_development_sessions(tmp_path: Path) -> None:
    check_state(settings(prepared(tmp_path / "before", lesson("screening"))))


@pytest.mark.parametrize(
    ("lessons", "message"),
    [
        ([lesson("held_out")], "was prepared by held_out"),
        ([lesson(), lesson("held_out")], "was prepared by held_out"),
        ([lesson(None)], "was prepared by sessions that name no split"),
        ([lesson(engine="colibri")], "is what colibri learnt, not buun"),
        ([], f"no {TAUGHT_BY} says which sessions prepared it"),
    ],
)
def test_a_state_of_other_than_development_sessions_is_refused(
    tmp_path: Path, lessons: list[Lesson], message: str
) -> None:
    warm = prepared(tmp_path / "before", *lessons)
    with pytest.raises(EngineError, match=message):
        prepare_state(settings(warm), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_not_there_is_refused_with_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"there is no folder .*; replay development sessions on this engine first"):
        check_state(settings(f"warm:{tmp_path}/nowhere"))


def test_a_damaged_note_is_named(tmp_path: Path) -> None:
    warm = prepared(tmp_path / "before", lesson())
    (tmp_path / "before" / TAUGHT_BY).write_text("[")
    with pytest.raises(EngineError, match=f"{TAUGHT_BY}: can't be read"):
        check_state(settings(warm))


def test_only_an_engine_that_asks_for_a_state_gets_one() -> None:
    assert keeps_state(settings())
    assert not keeps_state(settings(env={}))
    assert not keeps_state(settings(launch="attach"))
    assert keeps_state(settings(env={}, command=["serve", "--profile", "{state}/profile"]))
    with pytest.raises(EngineError, match="keeps nothing beyond a run"):
        check_state(settings("warm:x", env={}))
