"""Who computes next."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class QueueFullError(Exception):
    """More requests wait than the server was told to hold."""


class GoneError(Exception):
    """The client left, or the server is stopping."""


class Turnstile:
    """Lets one request in at a time, in order of arrival.

    Args:
        limit: how many may wait.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line: deque[object] = deque()
        self._moved = threading.Condition()

    @contextmanager
    def turn(self, gone: Callable[[], bool]) -> Iterator[None]:
        """Wait for the engine and hold it.

        Raises:
            QueueFullError: as many requests as allowed wait already.
            GoneError: the client left while it waited.
        """
        ticket = object()
        with self._moved:
            if len(self._line) > self._limit:
                raise QueueFullError
            self._line.append(ticket)
        try:
            with self._moved:
                while self._line[0] is not ticket:
                    if not self._moved.wait(timeout=0.2) and gone():
                        raise GoneError
            yield
        finally:
            with self._moved:
                self._line.remove(ticket)
                self._moved.notify_all()

    def counts(self) -> tuple[int, int]:
        """Requests that compute, and that wait."""
        length = len(self._line)
        return min(length, 1), max(length - 1, 0)

    def idle(self, timeout_s: float) -> bool:
        """Wait until nobody computes."""
        with self._moved:
            return self._moved.wait_for(lambda: not self._line, timeout_s)
