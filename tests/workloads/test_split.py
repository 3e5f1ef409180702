from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads import store
from workloads.cli import main
from workloads.load import load
from workloads.render import Renderer
from workloads.sample_paths import TOKENIZER
from workloads.session import Session, Turn, WorkloadError
from workloads.settings import WorkloadSettings
from workloads.split import DEVELOPMENT, HELD_OUT, PRESETS, SCREENING, Member, Sizes, content_of, members, split


def session(number: int, *, task: str | None = None, turns: int = 40) -> Session:
    return Session(
        session_id=f"session {number}",
        source="made",
        task_id=task,
        turns=tuple(
            Turn(kind="tool" if turn else "first", delta_ids=(number + 300, turn + 300), output_ids=(301,))
            for turn in range(turns)
        ),
    )


def member(number: int, task: str | None = None) -> Member:
    return Member(session_id=f"s{number}", task_id=task, content=str(number))


def test_the_presets_have_the_papers_sizes() -> None:
    swe = split(members([session(number) for number in range(40)]), PRESETS["swe"])
    assert {part: len(chosen) for part, chosen in swe.parts.items()} == {
        DEVELOPMENT: 6,
        SCREENING: 2,
        HELD_OUT: 13,
    }
    assert swe.unused == 21
    assert set(swe.parts[SCREENING]) < set(swe.parts[DEVELOPMENT])
    tau2 = split(members([session(number) for number in range(100)]), PRESETS["tau2"])
    assert {part: len(chosen) for part, chosen in tau2.parts.items()} == {DEVELOPMENT: 24, HELD_OUT: 60}


def test_screening_sessions_are_the_first_30_turns_of_development_sessions() -> None:
    found = [session(number) for number in range(40)]
    decided = split(members(found), PRESETS["swe"])
    screening = list(decided.sessions(SCREENING, found))
    whole = {one.session_id: one for one in decided.sessions(DEVELOPMENT, found)}
    assert [len(one.turns) for one in screening] == [30, 30]
    assert all(one.turns == whole[one.session_id].turns[:30] for one in screening)
    assert all(len(one.turns) == 40 for one in whole.values())


@given(
    trials=st.lists(st.integers(1, 5), min_size=4, max_size=12),
    development=st.integers(0, 3),
    held_out=st.integers(1, 3),
    seed=st.integers(0, 3),
)
def test_trials_of_a_task_never_straddle(trials: list[int], development: int, held_out: int, seed: int) -> None:
    numbered = [
        member(10 * task + trial, f"task {task}") for task, count in enumerate(trials) for trial in range(count)
    ]
    tasks = {one.session_id: one.task_id for one in numbered}
    try:
        decided = split(numbered, Sizes(development=development, held_out=held_out), seed=seed)
    except WorkloadError:
        assert len(trials) < development + held_out
        return
    sides = [{tasks[one] for one in decided.parts.get(part, ())} for part in (DEVELOPMENT, HELD_OUT)]
    assert not sides[0] & sides[1]
    assert len(decided.parts[HELD_OUT]) == held_out
    assert len(decided.parts.get(DEVELOPMENT, ())) == development


def test_by_session_every_trial_is_on_its_own() -> None:
    numbered = [member(number, "one task") for number in range(4)]
    with pytest.raises(WorkloadError, match=r"development=2: 4 different sessions of 1 tasks are too few"):
        split(numbered, Sizes(development=2, held_out=2))
    decided = split(numbered, Sizes(development=2, held_out=2), by="session")
    assert sorted(decided.parts[DEVELOPMENT] + decided.parts[HELD_OUT]) == ["s0", "s1", "s2", "s3"]


def test_the_seed_decides_and_neither_order_nor_company_does() -> None:
    sizes = Sizes(development=2, held_out=3)
    numbered = [member(number) for number in range(30)]
    first = split(numbered, sizes, seed=1)
    assert split(numbered[::-1], sizes, seed=1) == first
    assert split(numbered, sizes, seed=2).parts != first.parts
    without = [one for one in numbered if one.session_id not in first.parts[HELD_OUT] + first.parts[DEVELOPMENT]]
    used = [one for one in numbered if one not in without]
    assert split(used, sizes, seed=1).parts == first.parts


def test_sessions_of_the_same_content_count_once() -> None:
    original = session(1)
    waited = replace(original.turns[0], tool_wait_s=2.0)
    copies = [
        replace(original, session_id="copy", task_id="another"),
        replace(original, session_id="later", source="other", turns=(waited, *original.turns[1:])),
    ]
    assert {content_of(one) for one in (original, *copies)} == {content_of(original)}
    assert content_of(session(2)) != content_of(original)
    decided = split(members([*copies, original, session(2)]), Sizes(development=1, held_out=1))
    assert decided.duplicates == 2
    with pytest.raises(WorkloadError, match=r"2 different sessions"):
        split(members([*copies, original, session(2)]), Sizes(development=1, held_out=2))


@pytest.mark.parametrize(
    ("sizes", "by", "message"),
    [
        (Sizes(development=0, held_out=0), "task", r"a split of no session; give development=N"),
        (Sizes(development=1, held_out=1, screening=2), "task", r"screening=2: screening sessions are development"),
        (Sizes(development=-1, held_out=1), "task", r"counts; give whole numbers"),
        (Sizes(development=1, held_out=1), "repository", r"by=repository: known are task and session"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(sizes: Sizes, by: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        split([member(number) for number in range(9)], sizes, by=by)


def stored(path: Path, found: Sequence[Session]) -> Path:
    store.write(path, found, tokenizer_hash=Renderer(TOKENIZER).tokenizer_hash, vocab_size=4096)
    return path


def loaded(path: Path, wanted: str | None) -> list[str]:
    settings = WorkloadSettings(name="sessions", format="sessions", path=str(path), split=wanted)
    return [one.session_id for one in load(settings, TOKENIZER).sessions]


def test_the_command_writes_one_file_a_part_that_says_which_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = stored(tmp_path / "all.parquet", [session(number) for number in range(25)])
    main(["split", str(whole), "preset=swe", "held_out=12", "seed=3", f"out={tmp_path / 'parts'}"])
    printed = capsys.readouterr().out
    assert f"{tmp_path}/parts/held_out.parquet: 12 sessions" in printed
    assert "screening.parquet: 2 sessions (of the development sessions, their first 30 turns)" in printed
    assert "25 sessions split by task with seed 3: 7 not needed, 0 left out as duplicates of others" in printed
    for part, count in ((DEVELOPMENT, 6), (SCREENING, 2), (HELD_OUT, 12)):
        header = store.header(tmp_path / f"parts/{part}.parquet")
        assert (header.split, header.sessions) == (part, count)
    main(["stats", str(tmp_path / "parts/screening.parquet")])
    assert "split: screening" in capsys.readouterr().out


def test_a_development_session_is_refused_where_held_out_ones_are_asked_for(tmp_path: Path) -> None:
    whole = stored(tmp_path / "all.parquet", [session(number) for number in range(25)])
    main(["split", str(whole), "preset=swe", f"out={tmp_path}"])
    held_out, development = tmp_path / "held_out.parquet", tmp_path / "development.parquet"
    assert len(loaded(held_out, HELD_OUT)) == 13
    assert not set(loaded(held_out, None)) & set(loaded(development, DEVELOPMENT))
    with pytest.raises(WorkloadError, match=r"development\.parquet: holds development sessions, and workload"):
        loaded(development, HELD_OUT)
    with pytest.raises(WorkloadError, match=r"screening\.parquet: holds screening sessions"):
        loaded(tmp_path / "screening.parquet", HELD_OUT)
    with pytest.raises(WorkloadError, match=r"all\.parquet: names no split, so its sessions may have been tuned on"):
        loaded(whole, HELD_OUT)
    with pytest.raises(WorkloadError, match=r"workload\.split=heldout: there is no such split; known are develop"):
        loaded(held_out, "heldout")


def test_a_recording_has_no_split_to_ask_for(tmp_path: Path) -> None:
    settings = WorkloadSettings(name="tau2", format="tau2", path=str(tmp_path), split=HELD_OUT)
    with pytest.raises(WorkloadError, match=r"only a session file names its split; `prepare` one"):
        load(settings, TOKENIZER)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["preset=swe"], "out= is missing"),
        (["preset=mmlu", "out=x"], "preset=mmlu: known are swe, tau2"),
        (["out=x"], "a split of no session"),
        (["preset=swe", "out=x", "size=3"], "there is no size=; "),
    ],
)
def test_what_split_can_not_do_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    whole = stored(tmp_path / "all.parquet", [session(number) for number in range(25)])
    with pytest.raises(SystemExit) as caught:
        main(["split", str(whole), *words])
    error = capsys.readouterr().err
    assert (caught.value.code, error.count("\n")) == (2, 1)
    assert message in error


def test_a_part_is_not_split_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = stored(tmp_path / "all.parquet", [session(number) for number in range(25)])
    main(["split", str(whole), "preset=swe", f"out={tmp_path}"])
    with pytest.raises(SystemExit):
        main(["split", str(tmp_path / "held_out.parquet"), "held_out=1", f"out={tmp_path / 'again'}"])
    assert "held_out.parquet: is the held_out part of a split already" in capsys.readouterr().err
