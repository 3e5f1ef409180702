import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from workloads.formats import mooncake
from workloads.session import Session, WorkloadError

VOCAB = range(100, 4000)


def request(timestamp: int, hash_ids: list[int], input_length: int, output_length: int = 5) -> dict[str, Any]:
    return {
        "timestamp": timestamp,
        "input_length": input_length,
        "output_length": output_length,
        "hash_ids": hash_ids,
    }


def loaded(folder: Path, *requests: Any, losses: Counter[str] | None = None) -> list[Session]:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, requests)))
    return list(mooncake.load(path, vocab=VOCAB, block_size=10, losses=losses))


def shape(sessions: list[Session]) -> list[list[tuple[int, int]]]:
    return [
        [(len(prompt), len(turn.output_ids)) for prompt, turn in zip(one.prompts(), one.turns, strict=True)]
        for one in sessions
    ]


# Counted in the files: sessions that prefixes make of the 300 requests of each.
@pytest.mark.parametrize(("name", "sessions"), [("conversation", 284), ("synthetic", 298)])
def test_real_requests_keep_lengths_and_shared_blocks(shared: Path, name: str, sessions: int) -> None:
    path = shared / f"data/mooncake/{name}_first300.jsonl"
    found = list(mooncake.load(path, vocab=VOCAB, seed=3))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(found) == sessions
    lengths = Counter(pair for one in shape(found) for pair in one)
    assert lengths == Counter((row["input_length"], row["output_length"]) for row in rows)
    assert all(turn.kept_ids is None for one in found for turn in one.turns)
    blocks = {
        prompt[at : at + 512] for one in found for prompt in one.prompts() for at in range(0, len(prompt) - 511, 512)
    }
    hashed = {block for row in rows for block in row["hash_ids"][: row["input_length"] // 512]}
    assert len(blocks) == len(hashed)


def test_requests_that_go_on_are_one_session_and_prompts_nest(tmp_path: Path) -> None:
    losses: Counter[str] = Counter()
    found = loaded(
        tmp_path,
        request(0, [0, 1, 2], 25),
        request(0, [0, 3], 18),
        request(9, [0, 1, 4, 5], 40),
        request(20, [0, 1, 4, 5, 6], 46),
        losses=losses,
    )
    assert shape(found) == [[(25, 5), (40, 5), (46, 5)], [(18, 5)]]
    assert [turn.kind for turn in found[0].turns] == ["first", "user", "user"]
    assert [one.session_id for one in found] == ["trace/1", "trace/2"]
    assert losses == {mooncake.SINGLE: 1}


def test_a_shared_first_block_joins_nothing_but_is_shared(tmp_path: Path) -> None:
    a, b, c = loaded(tmp_path, request(0, [0, 1, 2], 30), request(5, [0, 3], 12), request(9, [0, 4, 5], 25))
    starts = [next(one.prompts()) for one in (a, b, c)]
    assert all(x[:10] == y[:10] and x[10:12] != y[10:12] for x, y in itertools.combinations(starts, 2))


@pytest.mark.parametrize(
    ("later", "why"),
    [
        (request(0, [0, 1, 2, 3], 40), "at the same time"),
        (request(9, [0, 1, 2, 3], 31), "too short to hold the answer"),
        (request(9, [0, 1, 7, 8], 40), "leaves a full block"),
    ],
)
def test_requests_that_cannot_go_on_are_sessions_of_their_own(tmp_path: Path, later: Any, why: str) -> None:
    assert len(loaded(tmp_path, request(0, [0, 1, 2], 30), later)) == 2, why


def test_of_two_requests_that_go_on_from_one_the_second_is_a_session_of_its_own(tmp_path: Path) -> None:
    found = loaded(tmp_path, request(0, [0, 1], 20), request(5, [0, 1, 2], 30), request(9, [0, 1, 3], 30))
    assert shape(found) == [[(20, 5), (30, 5)], [(30, 5)]]


def test_traces_of_one_folder_have_nothing_in_common(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(json.dumps(request(0, [0], 10)))
    a, b = mooncake.load(tmp_path, vocab=VOCAB, block_size=10)
    assert (a.session_id, b.session_id) == ("a/1", "b/1")
    assert next(a.prompts()) != next(b.prompts())


def test_requests_without_output_are_counted(tmp_path: Path) -> None:
    losses: Counter[str] = Counter()
    found = loaded(tmp_path, request(0, [0], 10, 0), request(0, [], 0), request(0, [0], 10), losses=losses)
    assert (len(found), losses[mooncake.NO_OUTPUT]) == (1, 2)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (request(0, [0, 1, 2], 10), "3 hashes of 10 tokens do not fit an input of 10 tokens; set block_size"),
        (request(0, [-1], 10), "hash_ids: a block hash is a whole number of 0 or more, found -1"),
        (request(0, "x", 10), "hash_ids: must be a list"),  # type: ignore[arg-type]
        (request(0, [0], 10, 1.5), "output_length: must be a count of tokens"),  # type: ignore[arg-type]
        (request(None, [0], 10), "timestamp must be a number"),  # type: ignore[arg-type]
        ({"a": 1}, "not a Mooncake request but an object with the keys a"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(tmp_path: Path, row: Any, expected: str) -> None:
    with pytest.raises(WorkloadError, match=f"line 1.*{expected}"):
        loaded(tmp_path, row)


@pytest.mark.parametrize("head", [None, 7, "x", [], {}, {"hash_ids": []}])
def test_other_heads_are_not_recognised(head: Any) -> None:
    assert mooncake.matches(request(0, [], 0))
    assert not mooncake.matches(head)
