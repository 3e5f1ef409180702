"""When each session starts and each turn is due."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from asyncio_throttle.throttler import Throttler

from engines.base import EngineError
from engines.settings import EngineSettings
from workloads.load import Workload
from workloads.session import Turn

_THROTTLE_STEP_S = 0.002


@dataclass
class ArrivalSettings:
    """Plain and mutable because OmegaConf builds its schema from it; treated as read-only everywhere else."""

    name: str = "closed"
    starts: str = "closed"
    """``closed``: a session starts when another has ended; ``poisson``: at random moments; ``recorded``: at
    ``starts_s``."""
    concurrency: int | None = 1
    """Most sessions at once; None for no limit."""
    sessions_per_s: float | None = None
    """poisson: how many start in a second, on average."""
    starts_s: list[float] = field(default_factory=list)
    """recorded: seconds, one a session in the order of their start; the first one starts at once."""
    seed: int = 0
    """Of the random moments and of the distinct prefixes."""
    max_starts_per_s: float | None = None
    """Never start more than so many sessions in a second; what has to wait is late, and its queue time says so."""
    tool_wait_factor: float = 0.0
    """Wait so much of the recorded time between an answer and the next request: 1 as recorded, 0 not at all."""
    tool_wait_cap_s: float | None = None
    """Never wait longer than this."""
    distinct_prefix_tokens: int = 0
    """Put so many tokens before each session, other ones for each, so that no two share a prefix."""


def check(arrival: ArrivalSettings, engine: EngineSettings) -> None:
    """Refuse what can't be meant.

    Raises:
        EngineError: the setting and a good value.
    """
    if arrival.starts not in ("closed", "poisson", "recorded"):
        raise EngineError(f"arrival.starts={arrival.starts} is not known; set closed, poisson or recorded")
    if arrival.starts == "poisson" and arrival.sessions_per_s is None:
        raise EngineError("arrival.starts=poisson needs arrival.sessions_per_s, for instance 0.5")
    if arrival.starts == "recorded" and any(later < earlier for earlier, later in pairwise(arrival.starts_s)):
        raise EngineError("arrival.starts_s must not decrease; sort it")
    for name in ("concurrency", "sessions_per_s", "max_starts_per_s"):
        value = getattr(arrival, name)
        if value is not None and value <= 0:
            raise EngineError(f"arrival.{name}={value:g} must be above 0; null means no limit")
    for name in ("tool_wait_factor", "tool_wait_cap_s", "distinct_prefix_tokens"):
        value = getattr(arrival, name)
        if value is not None and value < 0:
            raise EngineError(f"arrival.{name}={value:g} must not be below 0")
    if engine.forcing == "shim" and arrival.concurrency != 1:
        raise EngineError(
            "engine.forcing=shim follows one request at a time; set arrival.concurrency=1, or replay several "
            "sessions at once on an engine with engine.forcing=field"
        )


def check_workload(arrival: ArrivalSettings, workload: Workload) -> None:
    """Refuse a pace that the workload has no times for.

    Raises:
        EngineError: too few recorded starts, or no recorded waits.
    """
    if arrival.starts == "recorded" and len(arrival.starts_s) < len(workload.sessions):
        raise EngineError(
            f"arrival.starts_s has {len(arrival.starts_s)} entries and workload {workload.name} has "
            f"{len(workload.sessions)} sessions; give one a session, or set workload.max_sessions"
        )
    if arrival.tool_wait_factor and all(
        turn.tool_wait_s is None for session in workload.sessions for turn in session.turns
    ):
        raise EngineError(f"workload {workload.name} has no recorded waits; set arrival.tool_wait_factor=0")


def start_offsets_s(arrival: ArrivalSettings, sessions: int) -> tuple[float, ...] | None:
    """When each session is due, in seconds after the first; None where each starts as soon as it may.

    Poisson: the gaps are independent and exponential with mean 1 / ``sessions_per_s``.
    """
    if arrival.starts == "poisson":
        assert arrival.sessions_per_s is not None
        gaps_s = np.random.default_rng(arrival.seed).exponential(1 / arrival.sessions_per_s, sessions)
        return tuple((np.cumsum(gaps_s) - gaps_s[:1]).tolist())
    if arrival.starts == "recorded":
        return tuple(start - arrival.starts_s[0] for start in arrival.starts_s[:sessions])
    return None


def tool_wait_ns(arrival: ArrivalSettings, turn: Turn) -> int:
    """How long to wait before this turn once the answer before it has ended."""
    wait_s = (turn.tool_wait_s or 0.0) * arrival.tool_wait_factor
    if arrival.tool_wait_cap_s is not None:
        wait_s = min(wait_s, arrival.tool_wait_cap_s)
    return round(wait_s * 1e9)


async def sleep_until(due_ns: int, wake: asyncio.Event | None = None) -> bool:
    """Sleep until ``perf_counter_ns`` reads ``due_ns``, never less; True if ``wake`` was set first.

    uvloop rounds to whole milliseconds, so the last one is slept in turns of the loop.
    """
    while (left_ns := due_ns - time.perf_counter_ns()) > 0:
        if wake is None:
            await asyncio.sleep(left_ns / 1e9)
            continue
        try:
            async with asyncio.timeout(left_ns / 1e9):
                await wake.wait()
        except TimeoutError:
            continue
        return True
    return wake is not None and wake.is_set()


class Starts:
    """Deadlines of the sessions' starts, all absolute: a late session does not put off those after it.

    Args:
        offsets_s: as ``start_offsets_s`` gives them.
        first: number of the session that is due now; those after it keep their distance to it.
        wake: ends all waiting, when nothing may start any more.
    """

    def __init__(
        self, arrival: ArrivalSettings, offsets_s: Sequence[float] | None, *, first: int, wake: asyncio.Event
    ) -> None:
        self._offsets_s = offsets_s
        self._zero_ns = time.perf_counter_ns() - (round(offsets_s[first] * 1e9) if offsets_s else 0)
        self._wake = wake
        self._throttle: Any = None  # the library has no types
        if arrival.max_starts_per_s is not None:
            period_s = 1 / arrival.max_starts_per_s
            self._throttle = Throttler(rate_limit=1, period=period_s, retry_interval=_THROTTLE_STEP_S)

    async def wait(self, number: int, *, again: bool) -> int | None:
        """Wait until the session may start; return when it was due, None when it was due as soon as it could start.

        Args:
            again: it failed and is tried again, whenever that is.
        """
        due_ns = None
        if self._offsets_s is not None and not again:
            due_ns = self._zero_ns + round(self._offsets_s[number] * 1e9)
            await sleep_until(due_ns, self._wake)
        if self._throttle is not None and not self._wake.is_set():
            await self._throttle.acquire()
        return due_ns
