"""Replays the sessions that wait on one engine, as many at once as may be, until none waits or the engine is dead."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from engines.client import EngineClient
from replay.attempts import Attempt, Queue
from replay.pacing import ArrivalSettings, Starts, tool_wait_ns
from replay.record import TurnRecord
from replay.session import replay
from workloads.session import Session


class Engine(Protocol):
    @property
    def client(self) -> EngineClient: ...

    async def healthy(self) -> bool: ...

    async def forget(self, session: Session) -> None: ...


Concluded = Callable[[Attempt, TurnRecord | None], Awaitable[None]]
"""Told of a session that is complete (None), or of its failure once it is not tried again."""


async def replay_waiting(
    queue: Queue,
    engine: Engine,
    arrival: ArrivalSettings,
    offsets_s: Sequence[float] | None,
    *,
    name: str,
    repeat: int,
    keep: Callable[[TurnRecord], None],
    concluded: Concluded,
) -> TurnRecord | None:
    """Replay what waits.

    Args:
        offsets_s: when each session is due, as ``start_offsets_s`` gives it.
        keep: called with each turn's record before the session's next turn is sent.

    Returns:
        the failure that found the engine dead, and then sessions may still wait; None when all are concluded.

    Raises:
        whatever ``keep`` and ``concluded`` raise; the sessions under way are then dropped.
    """
    places = min(arrival.concurrency or len(queue), len(queue))
    if places > 1 and offsets_s is None:  # all of them send at once, each on a connection that is open by then
        await asyncio.gather(*(engine.healthy() for _ in range(places)))
    dead = asyncio.Event()
    deaths: list[TurnRecord] = []
    starts = Starts(arrival, offsets_s, first=queue.first_new, wake=dead)

    async def one_after_another() -> None:
        while queue and not dead.is_set():
            attempt = queue.take()
            if arrival.concurrency == 1:  # beside others there is no cold engine to be had
                await engine.forget(attempt.session)
            start_ns = await starts.wait(attempt.number, again=attempt.again)
            if dead.is_set():
                queue.put_back(attempt)
                return
            failed = await replay(
                attempt.session,
                engine.client,
                keep,
                engine=name,
                attempt=attempt.attempt,
                repeat=repeat,
                start_ns=start_ns,
                wait_ns=partial(tool_wait_ns, arrival),
            )
            if failed is None:
                await concluded(attempt, None)
                continue
            if not await engine.healthy():
                dead.set()
                deaths.append(failed)
            # Whoever found the engine dead first answers for it; for those that died along it does not count.
            if not queue.failed(attempt, counts=not deaths or failed is deaths[0]):
                await concluded(attempt, failed)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(places):
                group.create_task(one_after_another())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return deaths[0] if deaths else None
