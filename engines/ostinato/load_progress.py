"""How far a model's loading is, in lines for whoever waits."""

from collections.abc import Callable
from time import perf_counter

_EVERY_S = 2.0


class Loading:
    """Called with the bytes read and all bytes; says so every few seconds, and once at the end.

    Args:
        clock: seconds.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = perf_counter) -> None:
        self._say, self._clock = say, clock
        self._began = self._said = clock()
        self._ended = False

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if done >= total and not self._ended:
            self._ended = True
            self._say(amount("loaded", total, now - self._began))
        elif done < total and now - self._said >= _EVERY_S:
            self._said = now
            rate = done / max(now - self._began, 1e-9)
            left = (total - done) / max(rate, 1.0)
            self._say(
                f"loading the weights: {_gib(done)} of {_gib(total)} GiB, {_gib(rate)} GiB/s, {left:.0f} s left"
            )


def amount(what: str, nbytes: int, seconds: float) -> str:
    """``loaded 28.9 GiB at 2.4 GiB/s``."""
    return f"{what} {_gib(nbytes)} GiB at {_gib(nbytes / max(seconds, 1e-9))} GiB/s"


def _gib(nbytes: float) -> str:
    value = nbytes / 2**30
    return f"{value:.1f}" if value >= 1 else f"{value:.3f}"
