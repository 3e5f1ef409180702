"""Records survive a kill at any byte, and what is written after it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replay.record import RESULT_FILE, TURNS_FILE, RecordError, RecordWriter, TurnRecord, read_turns, write_json

TURN = TurnRecord(
    engine="fake",
    session_id="naïve ✓",
    turn=0,
    kind="first",
    attempt=0,
    status="ok",
    prompt_tokens=3,
    new_tokens=3,
    output_tokens=2,
    due_ns=1,
    sent_ns=2,
    first_byte_ns=3,
    token_ns=(4, 5),
    end_ns=6,
    verified_by="ids",
    error="two\nlines",
)


def write(folder: Path, turns: list[TurnRecord]) -> None:
    with RecordWriter(folder) as writer:
        for turn in turns:
            writer.append(turn)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    turns = [replace(TURN, turn=turn, server_token_ns=(7, 8) if turn else None) for turn in range(3)]
    write(tmp_path, turns[:1])
    write(tmp_path, turns[1:])
    assert list(read_turns(tmp_path)) == turns


@given(before=st.integers(0, 4), after=st.integers(0, 3), cut=st.floats(0, 1))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_cut_at_any_byte_is_read_and_gone_on_with(
    tmp_path_factory: pytest.TempPathFactory, before: int, after: int, cut: float
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    turns = [replace(TURN, turn=turn) for turn in range(before + after)]
    write(folder, turns[:before])
    path = folder / TURNS_FILE
    whole = path.read_bytes()
    path.write_bytes(whole[: round(cut * len(whole))])
    kept = list(read_turns(folder))
    assert kept == turns[: len(kept)]
    assert len(kept) == path.read_bytes().count(b"\n")
    write(folder, turns[before:])
    assert list(read_turns(folder)) == kept + turns[before:]


def test_every_byte_of_a_last_line_may_be_its_last(tmp_path: Path) -> None:
    write(tmp_path, [TURN, replace(TURN, turn=1)])
    path = tmp_path / TURNS_FILE
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        write(tmp_path, [replace(TURN, turn=2)])
        assert [turn.turn for turn in read_turns(tmp_path)] == ([0, 2] if length > len(whole) / 2 - 1 else [2])


def test_a_cut_line_longer_than_a_block_is_removed_whole(tmp_path: Path) -> None:
    write(tmp_path, [TURN, replace(TURN, turn=1, token_ns=tuple(range(10**9, 10**9 + 30_000)))])
    path = tmp_path / TURNS_FILE
    path.write_bytes(path.read_bytes()[:-2])
    assert path.stat().st_size > 200_000
    write(tmp_path, [replace(TURN, turn=2)])
    assert [turn.turn for turn in read_turns(tmp_path)] == [0, 2]


def test_two_writers_of_one_file_are_one_too_many(tmp_path: Path) -> None:
    with RecordWriter(tmp_path) as writer:
        writer.append(TURN)
        with pytest.raises(RecordError, match=r"turns\.jsonl: another `replay` is writing to it"):
            RecordWriter(tmp_path)
    write(tmp_path, [replace(TURN, turn=1)])
    assert [turn.turn for turn in read_turns(tmp_path)] == [0, 1]


Damage = Callable[[bytes], bytes]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda line: line[:-9] + b"\n", r"turns\.jsonl:1: not JSON"),
        (lambda _: b"[]\n", r"turns\.jsonl:1: a record is a JSON object"),
        (lambda line: line.replace(b'"version":1', b'"version":99'), r"turns\.jsonl:1: record version 99"),
        (lambda line: line.replace(b'"due_ns"', b'"dew_ns"'), r"turns\.jsonl:1: unknown field 'dew_ns'"),
        (lambda line: line.replace(b'"due_ns":1,', b""), r"turns\.jsonl:1: .*due_ns"),
    ],
)
def test_damage_that_no_kill_leaves_is_named(tmp_path: Path, damage: Damage, message: str) -> None:
    write(tmp_path, [TURN, TURN])
    path = tmp_path / TURNS_FILE
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(damage(first) + second)
    with pytest.raises(RecordError, match=message):
        list(read_turns(tmp_path))


def test_a_result_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / RESULT_FILE
    write_json(path, {"status": "running"})
    write_json(path, {"status": "complete"})
    assert orjson.loads(path.read_bytes()) == {"status": "complete"}
    assert [left.name for left in tmp_path.iterdir()] == [RESULT_FILE]
