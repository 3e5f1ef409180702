import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from workloads.formats import weka
from workloads.session import Session, WorkloadError

VOCAB = range(100, 4000)


def request(
    t: float, hash_ids: list[int], input_length: int, output_length: int = 5, **fields: Any
) -> dict[str, Any]:
    return {"t": t, "type": "s", "in": input_length, "out": output_length, "hash_ids": hash_ids} | fields


def trace(*requests: Any, **fields: Any) -> dict[str, Any]:
    return {"id": "a", "block_size": 10, "hash_id_scope": "local", "requests": list(requests)} | fields


def loaded(folder: Path, *traces: Any, losses: Counter[str] | None = None) -> list[Session]:
    path = folder / "traces.jsonl"
    path.write_text("\n".join(map(json.dumps, traces)))
    return list(weka.load(path, vocab=VOCAB, losses=losses))


# Counted in the files: turns, and how many ids a prompt keeps where it leaves blocks of the one before.
REAL: dict[str, tuple[int, list[int]]] = {
    "trace_0110": (21, [1378 * 64, 1455 * 64]),
    "trace_0201": (7, [141035, 2229 * 64, 144952]),
    "trace_0242": (3, [15291, 17401]),
    "trace_0480": (4, [2098 * 64]),
    "trace_0504": (3, [170 * 64]),
}


@pytest.mark.parametrize("name", REAL)
def test_real_traces_keep_lengths_and_what_prompts_share(shared: Path, name: str) -> None:
    path = shared / f"data/weka_kvcache/{name}.json"
    losses: Counter[str] = Counter()
    (one,) = weka.load(path, vocab=VOCAB, losses=losses)
    rows = json.loads(path.read_text())["requests"]
    turns, kept = REAL[name]
    assert [(len(prompt), len(turn.output_ids)) for prompt, turn in zip(one.prompts(), one.turns, strict=True)] == [
        (row["in"], row["out"]) for row in rows
    ]
    assert (len(one.turns), [turn.kept_ids for turn in one.turns if turn.kept_ids is not None]) == (turns, kept)
    waits = sum(turn.tool_wait_s is not None for turn in one.turns)
    assert waits + losses[weka.NO_WAIT] == turns - 1
    assert [turn.kind == "tool" for turn in one.turns[1:]] == [
        "tool_result" in row["input_types"] for row in rows[1:]
    ]


def test_real_waits_are_from_an_answers_end_to_the_next_request(shared: Path) -> None:
    (one,) = weka.load(shared / "data/weka_kvcache/trace_0504.json", vocab=VOCAB)
    assert one.turns[0].tool_wait_s is None
    assert [turn.tool_wait_s for turn in one.turns[1:]] == pytest.approx([13 - 8.79, 3075 - 13 - 3.09])


def test_the_same_requests_under_another_id_are_counted_once(tmp_path: Path) -> None:
    losses: Counter[str] = Counter()
    one = trace(request(0, [1], 10))
    found = loaded(tmp_path, one, one | {"id": "b"}, trace(request(0, [2], 10), id="c"), losses=losses)
    assert [session.session_id for session in found] == ["a", "c"]
    assert losses == {weka.DUPLICATE: 1}


def test_local_hashes_of_two_traces_have_nothing_in_common_and_global_ones_do(tmp_path: Path) -> None:
    for scope, shared_ids in (("local", False), ("global", True)):
        a, b = loaded(
            tmp_path,
            trace(request(0, [1, 2], 20), hash_id_scope=scope),
            trace(request(0, [1, 3], 20), hash_id_scope=scope, id="b"),
        )
        assert (next(a.prompts())[:10] == next(b.prompts())[:10]) is shared_ids


def test_subagents_are_sessions_that_share_the_traces_blocks_and_task(tmp_path: Path) -> None:
    inner = {"type": "subagent", "agent_id": "x", "t": 3, "requests": [request(0, [9, 2], 20)]}
    outer = {"type": "subagent", "t": 2, "requests": [request(0, [1, 5], 20), inner]}
    main, first, second = loaded(tmp_path, trace(request(0, [1], 10), outer, request(9, [1, 2], 20)))
    assert [len(one.turns) for one in (main, first, second)] == [2, 1, 1]
    assert [one.session_id for one in (main, first, second)] == ["a", "a/1", "a/1/x"]
    assert {one.task_id for one in (main, first, second)} == {"a"}
    assert next(first.prompts())[:10] == next(main.prompts())


def test_optional_keys_may_be_missing_and_what_they_would_tell_is_counted(tmp_path: Path) -> None:
    losses: Counter[str] = Counter()
    bare = {"type": "n", "in": 10, "out": 3, "hash_ids": [1]}
    (one,) = loaded(tmp_path, trace(bare, bare | {"in": 20, "hash_ids": [1, 2]}, model=None), losses=losses)
    assert [(turn.kind, turn.tool_wait_s) for turn in one.turns] == [("first", None), ("user", None)]
    assert losses == {weka.NO_WAIT: 1}


def test_prompts_too_short_for_the_answer_before_them_are_counted(tmp_path: Path) -> None:
    losses: Counter[str] = Counter()
    loaded(tmp_path, trace(request(0, [1], 10, 9), request(1, [1], 15, 9)), losses=losses)
    assert losses == {weka.TOO_SHORT: 1, weka.NO_WAIT: 1}


def test_what_cannot_be_replayed_is_counted(tmp_path: Path) -> None:
    losses: Counter[str] = Counter()
    empty = {"type": "subagent", "requests": []}
    assert loaded(tmp_path, trace(request(0, [1], 10, 0), empty), losses=losses) == []
    assert losses == {weka.NO_OUTPUT: 1, weka.NO_REQUESTS: 2}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"a": 1}, "not a Weka trace but an object with the keys a"),
        (trace(block_size=0), "block_size: must be 1 or more"),
        (trace(block_size="64"), "block_size: must be a count of tokens"),
        (trace(hash_id_scope="lunar"), "hash_id_scope: 'lunar' is unknown; known are local, global"),
        (trace({"type": "z"}), "request 1 of a: type 'z' is unknown; known are n, s, subagent"),
        (trace(request(0, [1], -1)), "request 1, in: must be a count of tokens"),
        (trace(request(0, [1.5], 10)), "request 1, hash_ids: a block hash is a whole number"),  # type: ignore[list-item]
        (trace(request("x", [1], 10)), "request 1, t: must be a number of seconds"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(tmp_path: Path, row: Any, expected: str) -> None:
    with pytest.raises(WorkloadError, match=f"line 1.*{expected}"):
        loaded(tmp_path, row)


@pytest.mark.parametrize("head", [None, 7, "x", [], {}, {"requests": []}, {"block_size": 1, "requests": "x"}])
def test_other_heads_are_not_recognised(head: Any) -> None:
    assert weka.matches(trace())
    assert not weka.matches(head)
