"""Run folders in, a frame of turns out: what is kept, what is counted apart and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from analysis.pairing import pair
from analysis.runs import read_runs
from analysis.summary import summarise
from replay.record import RecordError, TurnRecord

Records = list[TurnRecord]


def test_every_turn_is_a_row_with_its_metrics(three: Path) -> None:
    runs = read_runs(three)
    assert [run.key for run in runs] == ["ik_llamacpp", "llamacpp", "ostinato"]
    assert [len(run.turns) for run in runs] == [40, 40, 40]
    turns = runs[0].turns
    assert turns["stream_s"].notna().all()
    assert ((turns["ttft_s"] + turns["decode_s"] - turns["request_s"]).abs() < 1e-9).all()


@pytest.mark.parametrize(("settings", "all_as_expected"), [({"cache_block_tokens": 16}, True), ({}, False)])
def test_a_cache_of_whole_blocks_is_measured_by_its_blocks(
    world: Any, speed: Any, settings: dict[str, Any], all_as_expected: bool
) -> None:
    def to_blocks(made: Records) -> Records:
        held = [(turn.prompt_tokens - turn.new_tokens - 1) // 16 * 16 if turn.turn else 0 for turn in made]
        return [
            replace(turn, cached_tokens=kept, prefilled_tokens=turn.prompt_tokens - kept)
            for turn, kept in zip(made, held, strict=True)
        ]

    engine = {"name": "vllm", "label": "vLLM", "note": "", "settings": settings, "server": {}}
    folder = world({"vllm": speed()}, sessions=2, records={"vllm": to_blocks}, results={"vllm": {"engine": engine}})
    summary = summarise(folder)
    assert summary.engines[0].prefill_reported == 10
    assert (summary.engines[0].prefill_as_expected == 10) is all_as_expected


def test_a_block_size_that_cannot_be_is_named(world: Any, speed: Any) -> None:
    engine = {"name": "vllm", "label": "", "note": "", "settings": {"cache_block_tokens": 0}, "server": {}}
    folder = world({"vllm": speed()}, sessions=2, results={"vllm": {"engine": engine}})
    with pytest.raises(RecordError, match="cache_block_tokens is 0; the file was changed after the run"):
        read_runs(folder)


def test_only_the_last_attempt_at_a_session_counts(world: Any, speed: Any) -> None:
    def tried_twice(made: Records) -> Records:
        failed = replace(made[0], status="stall", token_ns=(), end_ns=None)
        again = [replace(r, attempt=1) if r.session_id == made[0].session_id else r for r in made]
        return [failed, *again]

    (run,) = read_runs(world({"llamacpp": speed()}, sessions=2, records={"llamacpp": tried_twice}))
    assert len(run.turns) == len(run.measured) == 10
    assert run.earlier_attempts == 1
    assert pair([run]).sessions == ("session-00", "session-01")


def test_a_failed_turn_is_kept_apart_and_its_session_named(world: Any, speed: Any, fail_turn: Any) -> None:
    runs = read_runs(
        world(
            {"llamacpp": speed(), "ostinato": speed(0.5)},
            sessions=3,
            records={"ostinato": fail_turn("session-01", 2)},
        )
    )
    assert len(runs[1].failed) == 1
    assert len(runs[1].measured) == 12
    paired = pair(runs)
    assert paired.sessions == ("session-00", "session-02")
    assert paired.excluded == {"session-01": "Ostinato: turn 2 failed: tokens (token 3: expected 7, got 9)"}


def test_an_interrupted_session_is_not_finished(world: Any, speed: Any) -> None:
    runs = read_runs(
        world(
            {"llamacpp": speed(), "ostinato": speed(0.5)},
            sessions=3,
            records={"ostinato": lambda made: made[:8]},
            results={"ostinato": {"status": "interrupted", "sessions": {"session-00": "complete"}}},
        )
    )
    assert pair(runs).excluded == {"session-01": "Ostinato: interrupted", "session-02": "Ostinato: not reached"}


def test_a_run_that_never_said_that_it_ended_counts_as_interrupted(world: Any, speed: Any) -> None:
    killed = {"status": "running", "sessions": {"session-00": "complete"}, "validity": [], "telemetry": None}
    (run,) = read_runs(
        world(
            {"ostinato": speed()},
            sessions=2,
            records={"ostinato": lambda made: made[:7]},
            results={"ostinato": killed},
        )
    )
    assert run.status == "interrupted"
    assert "killed" in str(run.error)
    assert pair([run]).sessions == ("session-00",)


def test_an_engine_that_finished_nothing_does_not_empty_the_comparison(world: Any, speed: Any) -> None:
    runs = read_runs(
        world(
            {"llamacpp": speed(), "ostinato": speed(0.5), "broken": speed()},
            records={"broken": lambda made: []},
            results={"broken": {"status": "failed", "error": "the server ended with status 1", "sessions": {}}},
        )
    )
    assert pair(runs).engines == ("llamacpp", "ostinato")
    assert len(pair(runs).sessions) == 8


def test_a_session_with_a_turn_missing_is_not_finished(world: Any, speed: Any) -> None:
    runs = read_runs(world({"llamacpp": speed()}, sessions=2, records={"llamacpp": lambda made: made[1:]}))
    assert pair(runs).excluded == {"session-00": "llama.cpp: turns are missing from the records"}


def test_a_session_whose_last_turn_was_lost_is_not_finished(world: Any, speed: Any) -> None:
    runs = read_runs(world({"llamacpp": speed()}, sessions=2, records={"llamacpp": lambda made: made[:-1]}))
    assert pair(runs).excluded == {"session-01": "llama.cpp: the records hold 4 of its 5 turns"}


def test_repeats_of_an_engine_are_one_run_and_a_session_counts_once(world: Any, speed: Any) -> None:
    def slower(made: Records) -> Records:
        return [replace(r, repeat=1, end_ns=(r.end_ns or 0) + 50_000_000) for r in made]

    again = {"engine": {"name": "a", "label": "A", "note": "", "settings": {}, "server": {}}, "repeat": 1}
    folder = world(
        {"a": speed(), "a-again": speed()}, sessions=2, records={"a-again": slower}, results={"a-again": again}
    )
    (run,) = read_runs(folder)
    assert (run.key, len(run.turns), len(run.folders)) == ("a", 20, 2)
    assert pair([run]).sessions == ("session-00", "session-01")
    first = run.turns[run.turns["repeat"] == 0]
    assert summarise(folder).engines[0].total_request_s == pytest.approx(first["stream_s"].sum() + 10 * 0.025)


def test_a_session_that_one_repeat_did_not_reach_is_not_finished(world: Any, speed: Any) -> None:
    again = {
        "engine": {"name": "a", "label": "A", "note": "", "settings": {}, "server": {}},
        "repeat": 1,
        "status": "interrupted",
        "sessions": {"session-00": "complete"},
    }
    (run,) = read_runs(
        world(
            {"a": speed(), "a-again": speed()},
            sessions=2,
            records={"a-again": lambda made: [replace(r, repeat=1) for r in made[:5]]},
            results={"a-again": again},
        )
    )
    assert run.status == "interrupted"
    assert pair([run]).excluded == {"session-01": "A: not reached"}


def test_two_runs_of_one_engine_are_told_apart_by_their_folders(world: Any, speed: Any) -> None:
    folder = world({"a": speed(), "b": speed()}, sessions=1)
    for name in "ab":
        path = folder / name / "result.json"
        path.write_bytes(path.read_bytes().replace(f'"name": "{name}"'.encode(), b'"name": "llamacpp"'))
    assert [run.key for run in read_runs(folder)] == ["llamacpp (a)", "llamacpp (b)"]
    (folder / "b").rename(folder / "llamacpp,engine.threads=4")
    assert [run.key for run in read_runs(folder)] == ["llamacpp (a)", "llamacpp (engine.threads=4)"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workload", {"name": "made-up", "hash": "other", "sessions": 8, "turns": 40}),
        ("model", {"name": "tiny", "hash": "other"}),
        ("environment", {"machine": "another", "cpu": "Made-up 9000", "cores": 2, "kernel": "6.1.0", "gpus": None}),
    ],
)
def test_unlike_runs_are_named_by_the_field_that_differs(world: Any, speed: Any, field: str, value: object) -> None:
    runs = read_runs(
        world({"llamacpp": speed(), "ostinato": speed()}, sessions=2, results={"ostinato": {field: value}})
    )
    (difference,) = pair(runs).differences
    assert difference.startswith(f"{field}.{'machine' if field == 'environment' else 'hash'}: llama.cpp ")


def test_what_a_run_stored_as_its_key_decides(world: Any, speed: Any) -> None:
    def stored(**fields: object) -> dict[str, Any]:
        return {"comparability": {"key": "…", "fields": {"workload.hash": "w", "engine.context": 4096, **fields}}}

    def between(name: str, one: dict[str, Any], other: dict[str, Any]) -> tuple[str, ...]:
        folder = world(
            {"llamacpp": speed(), "ostinato": speed()}, sessions=1, results={"llamacpp": one, "ostinato": other}
        )
        found = pair(read_runs(folder)).differences
        folder.rename(folder.with_name(name))
        return found

    assert between("alike", stored(), stored()) == ()
    assert between("unlike", stored(), stored(**{"engine.context": 8192, "arrival.concurrency": 4})) == (
        "engine.context: llama.cpp 4096, Ostinato 8192",
        "arrival.concurrency: llama.cpp has none, Ostinato 4",
    )


def test_runs_that_replayed_other_turns_are_unlike(world: Any, speed: Any) -> None:
    def longer(made: Records) -> Records:
        return [replace(made[0], new_tokens=made[0].new_tokens + 1), *made[1:]]

    runs = read_runs(world({"llamacpp": speed(), "ostinato": speed()}, sessions=2, records={"ostinato": longer}))
    assert pair(runs).differences == ("the recorded turns: llama.cpp and Ostinato did not replay the same ones",)


def twice(made: Records) -> Records:
    return [*made, made[3]]


def backwards(made: Records) -> Records:
    return [replace(made[0], token_ns=made[0].token_ns[::-1]), *made[1:]]


def before_it_was_sent(made: Records) -> Records:
    return [replace(made[0], token_ns=(1, *made[0].token_ns)), *made[1:]]


def without_an_end(made: Records) -> Records:
    return [replace(made[0], end_ns=None), *made[1:]]


def in_words(made: Records) -> Records:
    return [replace(made[0], server_prefill_s="NaN"), *made[1:]]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (twice, r"turns\.jsonl: session 'session-00' has turn 3 of attempt 0 twice"),
        (backwards, r"turns\.jsonl:1: session 'session-00' turn 0 has times out of order"),
        (before_it_was_sent, r"turns\.jsonl:1: .* has times out of order"),
        (without_an_end, r"turns\.jsonl:1: .* is ok but lacks the time"),
        (in_words, r"turns\.jsonl:1: .* has server_prefill_s = 'NaN'"),
    ],
)
def test_turns_that_cannot_be_true_are_refused(
    world: Any, speed: Any, change: Callable[[Records], Records], message: str
) -> None:
    with pytest.raises(RecordError, match=message):
        read_runs(world({"llamacpp": speed()}, sessions=1, records={"llamacpp": change}))


def test_a_number_that_is_not_one_is_refused(world: Any, speed: Any) -> None:
    path = world({"llamacpp": speed()}, sessions=1) / "llamacpp" / "turns.jsonl"
    row = orjson.loads(path.read_bytes().splitlines()[0])
    row["server_prefill_s"] = "here"
    path.write_bytes(orjson.dumps(row).replace(b'"here"', b"NaN") + b"\n")
    with pytest.raises(RecordError, match=r"turns\.jsonl:1: not JSON"):
        read_runs(path.parent)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"version": 2}, r"result\.json: result version 2, this program reads version 1"),
        ({"version": 1, "status": "complete"}, r"result\.json: no field 'engine'; run `replay` again"),
    ],
)
def test_a_result_of_another_shape_is_refused(tmp_path: Path, result: dict[str, object], message: str) -> None:
    (tmp_path / "result.json").write_bytes(orjson.dumps(result))
    with pytest.raises(RecordError, match=message):
        read_runs(tmp_path)


def test_a_folder_without_runs_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no result\.json here or below; name a folder that `replay` wrote"):
        read_runs(tmp_path)
    with pytest.raises(RecordError, match="no such folder"):
        read_runs(tmp_path / "elsewhere")


def test_runs_without_a_measured_turn_are_refused(world: Any, speed: Any, fail_turn: Any) -> None:
    folder = world({"llamacpp": speed()}, sessions=1, records={"llamacpp": fail_turn("session-00", 0)})
    with pytest.raises(RecordError, match="no turn was measured"):
        read_runs(folder)
