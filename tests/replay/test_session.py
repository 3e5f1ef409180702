"""A session against a client that answers as told."""

import dataclasses
from collections.abc import Sequence

import pytest

from engines.base import Chunk, EngineError, ForcedRequest, Reply, ServerReport
from replay.record import TurnRecord
from replay.session import arrivals, replay
from workloads.session import Session, Turn

SESSION = Session(
    session_id="s",
    source="test",
    turns=(
        Turn(kind="first", delta_ids=(1, 2, 3), output_ids=(4, 5)),
        Turn(kind="tool", delta_ids=(6,), output_ids=(7,)),
        Turn(kind="user", delta_ids=(8, 9), output_ids=(10,)),
    ),
)


class Scripted:
    """Answers each turn at once, except those it is told to fail."""

    def __init__(self, failures: Sequence[int] = ()) -> None:
        self.requests: list[ForcedRequest] = []
        self._failures = failures

    async def turn(self, request: ForcedRequest) -> Reply:
        self.requests.append(request)
        number = len(self.requests) - 1
        if number in self._failures:
            raise EngineError("position 1: expected 5, got 6", kind="wrong_tokens")
        start = number * 1000
        return Reply(
            sent_ns=start,
            first_byte_ns=start + 1,
            end_ns=start + 99,
            chunks=(Chunk(t_ns=start + 10, n_tokens=len(request.output_ids)),),
            report=ServerReport(cached_tokens=start, prefilled_tokens=3),
            verified_by="ids",
        )


async def run(client: Scripted) -> tuple[list[TurnRecord], TurnRecord | None]:
    kept: list[TurnRecord] = []
    failed = await replay(SESSION, client, kept.append, engine="fake", attempt=1, repeat=2)
    return kept, failed


@pytest.mark.anyio
async def test_each_prompt_holds_every_prompt_and_answer_before_it() -> None:
    client = Scripted()
    _, failed = await run(client)
    assert failed is None
    assert [request.prompt_ids for request in client.requests] == [
        (1, 2, 3),
        (1, 2, 3, 4, 5, 6),
        (1, 2, 3, 4, 5, 6, 7, 8, 9),
    ]
    assert [request.output_ids for request in client.requests] == [(4, 5), (7,), (10,)]


@pytest.mark.anyio
async def test_a_rewritten_prompt_counts_as_new_what_it_does_not_keep() -> None:
    first, second, third = SESSION.turns
    rewritten = dataclasses.replace(SESSION, turns=(first, dataclasses.replace(second, kept_ids=4), third))
    client = Scripted()
    kept: list[TurnRecord] = []
    await replay(rewritten, client, kept.append, engine="fake", attempt=1, repeat=1)
    assert [request.prompt_ids for request in client.requests] == [
        (1, 2, 3),
        (1, 2, 3, 4, 6),
        (1, 2, 3, 4, 6, 7, 8, 9),
    ]
    assert [(record.prompt_tokens, record.new_tokens) for record in kept] == [(3, 3), (5, 1), (8, 2)]


@pytest.mark.anyio
async def test_a_record_holds_what_was_asked_and_what_was_observed() -> None:
    kept, _ = await run(Scripted())
    first, second, _ = kept
    assert (first.prompt_tokens, first.new_tokens, first.output_tokens, first.kind) == (3, 3, 2, "first")
    assert (second.prompt_tokens, second.new_tokens, second.turn) == (6, 1, 1)
    assert (first.token_ns, first.end_ns, first.verified_by, first.status) == ((10, 10), 99, "ids", "ok")
    assert (second.cached_tokens, second.prefilled_tokens) == (1000, 3)
    assert {(record.attempt, record.repeat) for record in kept} == {(1, 2)}
    assert first.due_ns <= second.due_ns


@pytest.mark.anyio
async def test_a_failed_turn_is_kept_and_ends_the_session() -> None:
    kept, failed = await run(Scripted(failures=[1]))
    assert failed is kept[-1]
    assert [record.status for record in kept] == ["ok", "wrong_tokens"]
    assert kept[1].error == "position 1: expected 5, got 6"
    assert kept[1].sent_ns is None
    assert kept[1].token_ns == ()


def test_tokens_of_one_chunk_share_its_reading() -> None:
    assert arrivals((Chunk(t_ns=5, n_tokens=1), Chunk(t_ns=9, n_tokens=2))) == (5, 9, 9)
