"""One session against one engine, turn by turn."""

import time
from collections.abc import Callable
from typing import Any, Protocol

from engines.base import Chunk, EngineError, ForcedRequest, Reply
from replay.pacing import sleep_until
from replay.record import TurnRecord
from workloads.session import Session, Turn


class Client(Protocol):
    async def turn(self, request: ForcedRequest) -> Reply: ...


async def replay(
    session: Session,
    client: Client,
    keep: Callable[[TurnRecord], None],
    *,
    engine: str,
    attempt: int,
    repeat: int,
    start_ns: int | None = None,
    wait_ns: Callable[[Turn], int] | None = None,
) -> TurnRecord | None:
    """Send every turn when the one before has ended, and ``keep`` its record before the next is sent.

    A failed turn ends the session: the prompts after it would hold tokens that the engine never produced.

    Args:
        start_ns: when the first turn was due; None for now.
        wait_ns: how long a turn waits for the end of the one before; None for not at all.

    Returns:
        the record of the failed turn, None when all went well.
    """
    ended_ns = 0
    for number, (turn, prompt_ids) in enumerate(zip(session.turns, session.prompts(), strict=True)):
        request = ForcedRequest(prompt_ids=prompt_ids, output_ids=turn.output_ids)
        due_ns = start_ns if number == 0 and start_ns is not None else time.perf_counter_ns()
        if number and wait_ns is not None and (wait := wait_ns(turn)):
            due_ns = ended_ns + wait
            await sleep_until(due_ns)
        reply: Reply | None = None
        failure: EngineError | None = None
        try:
            reply = await client.turn(request)
        except EngineError as error:
            failure = error
        record = TurnRecord(
            engine=engine,
            session_id=session.session_id,
            turn=number,
            kind=turn.kind,
            attempt=attempt,
            repeat=repeat,
            status=failure.kind if failure else "ok",
            error=str(failure) if failure else None,
            prompt_tokens=len(prompt_ids),
            new_tokens=len(turn.delta_ids),
            output_tokens=len(turn.output_ids),
            due_ns=due_ns,
            **(observed(reply) if reply else {}),
        )
        keep(record)
        if failure:
            return record
        assert reply is not None
        ended_ns = reply.end_ns
    return None


def observed(reply: Reply) -> dict[str, Any]:
    """The fields of a record that come from the engine's answer."""
    return {
        "sent_ns": reply.sent_ns,
        "first_byte_ns": reply.first_byte_ns,
        "token_ns": arrivals(reply.chunks),
        "end_ns": reply.end_ns,
        "verified_by": reply.verified_by,
        "server_token_ns": reply.server_token_ns,
        "cached_tokens": reply.report.cached_tokens,
        "prefilled_tokens": reply.report.prefilled_tokens,
        "server_prefill_s": reply.report.prefill_s,
        "server_decode_s": reply.report.decode_s,
    }


def arrivals(chunks: tuple[Chunk, ...]) -> tuple[int, ...]:
    """The arrival of each token; tokens of one chunk share its reading."""
    return tuple(chunk.t_ns for chunk in chunks for _ in range(chunk.n_tokens))
