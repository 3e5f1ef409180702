"""Which sessions still wait for the engine, and how often each was tried."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from workloads.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at a session."""

    number: int
    """Of the session, in the order of the replay."""
    session: Session
    attempt: int
    """As its records say it: 0 for the first try ever."""
    failures: int = 0
    """Tries of this command that failed on their own account."""
    again: bool = False
    """This command tried it before."""


class Queue:
    """Sessions in the order of their replay, those that failed before all others.

    Args:
        retries: how many failures of its own a session is forgiven.
        attempts: session → attempts that an interrupted run made.
        done: sessions that need no replay.
    """

    def __init__(
        self, sessions: Sequence[Session], *, retries: int, attempts: Mapping[str, int], done: frozenset[str]
    ) -> None:
        self._retries = retries
        self._heap: list[tuple[bool, int, Attempt]] = []
        for number, session in enumerate(sessions):
            if session.session_id not in done:
                tried = attempts.get(session.session_id, 0)
                self.put_back(Attempt(number=number, session=session, attempt=tried))

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def first_new(self) -> int:
        """Number of the next session that this command did not try yet; 0 when there is none."""
        return min((number for fresh, number, _ in self._heap if fresh), default=0)

    def take(self) -> Attempt:
        return heapq.heappop(self._heap)[2]

    def put_back(self, attempt: Attempt) -> None:
        heapq.heappush(self._heap, (not attempt.again, attempt.number, attempt))

    def failed(self, attempt: Attempt, *, counts: bool) -> bool:
        """Put it in line for another try; False when it had all of them.

        Args:
            counts: it failed on its own account, and not because another one took the engine down.
        """
        failures = attempt.failures + counts
        if failures > self._retries:
            return False
        self.put_back(replace(attempt, attempt=attempt.attempt + 1, failures=failures, again=True))
        return True
