"""Which values are tried, and in what order. Knows nothing of engines."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from engines.base import EngineError

LARGEST, SMALLEST = "largest", "smallest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The values between ``low`` and ``high`` that lie whole steps from ``low``, and ``high`` itself."""

    low: int
    high: int
    step: int = 1
    prefer: str = LARGEST
    """The end that is wanted: it takes the most memory."""

    def __post_init__(self) -> None:
        if self.prefer not in (LARGEST, SMALLEST):
            raise EngineError(f"fit.prefer={self.prefer} is not known; set {LARGEST} or {SMALLEST}")
        if self.step < 1 or self.low >= self.high:
            raise EngineError(
                f"fit.low={self.low}, fit.high={self.high}, fit.step={self.step}: nothing to search; set low below "
                "high, and a step of 1 or more"
            )

    def values(self) -> list[int]:
        """From the one that asks for least memory to the one that is wanted."""
        rising = [*range(self.low, self.high, self.step), self.high]
        return rising if self.prefer == LARGEST else rising[::-1]


async def search(bounds: Bounds, passes: Callable[[int], Awaitable[bool]]) -> int | None:
    """The wanted-most value that passes, where all that ask for less memory pass too; None when none does.

    The easiest value is tried first: an engine that can't run at all is then known after one start. Then the one that
    is wanted most, then halves: log2 of the number of values, and two.
    """
    values = bounds.values()
    if not await passes(values[0]):
        return None
    if await passes(values[-1]):
        return values[-1]
    good, bad = 0, len(values) - 1
    while bad - good > 1:
        middle = (good + bad) // 2
        if await passes(values[middle]):
            good = middle
        else:
            bad = middle
    return values[good]
