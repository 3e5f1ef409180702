"""Resampled sessions, their repeats as a second level, and the interval that resamples give.

Shapes: S = sessions, R = resamples, K = repeats of a session, U = S x K, session s's repeat k at ``s * K + k``.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

SMALLEST_SAMPLE = 8
"""Sessions below which there is no interval: a bootstrap of fewer covers far less than it claims."""
RESAMPLES = 10_000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float
    level: float = LEVEL

    def excludes(self, value: float) -> bool:
        return value < self.low or value > self.high


def resample(sessions: int, rng: np.random.Generator, *, resamples: int = RESAMPLES) -> Integers:
    """How often each session is drawn, ``counts_RS``; every row sums to S. Share one for all that is compared."""
    drawn_RS = rng.integers(0, sessions, (resamples, sessions))
    drawn_RS += np.arange(resamples)[:, None] * sessions
    return np.bincount(drawn_RS.ravel(), minlength=resamples * sessions).reshape(resamples, sessions)


def repeat_counts(counts_RS: Integers, repeats: int, rng: np.random.Generator) -> Integers:
    """How often each repeat is drawn, ``counts_RU``: a session drawn c times has ``c K`` draws of its K repeats.

    The second level of a two-level bootstrap (Davison & Hinkley 1997, ch. 3.8). Engines that are compared share the
    sessions drawn, not the repeats: their restarts have nothing to do with each other.
    """
    if repeats == 1:
        return counts_RS
    drawn_RSK = rng.multinomial(counts_RS * repeats, np.full(repeats, 1 / repeats))
    return drawn_RSK.reshape(len(counts_RS), -1)


def drawn_means(values_SK: Floats, drawn_RS: Integers, rng: np.random.Generator) -> Floats:
    """Of each session drawn, the mean of K repeats drawn from its K, ``[R, S]``; anew each time it is drawn."""
    repeats = values_SK.shape[1]
    if repeats == 1:
        return values_SK[:, 0][drawn_RS]
    total_RS = np.zeros(drawn_RS.shape)
    for _ in range(repeats):
        total_RS += values_SK[drawn_RS, rng.integers(0, repeats, drawn_RS.shape)]
    mean_RS: Floats = total_RS / repeats
    return mean_RS


def drawn_sessions(counts_RS: Integers) -> Integers:
    """The sessions that counts stand for, one by one, ``[R, S]``."""
    resamples, sessions = counts_RS.shape
    return np.repeat(np.tile(np.arange(sessions), resamples), counts_RS.ravel()).reshape(resamples, sessions)


def percentile_interval(values_R: Floats, *, level: float = LEVEL) -> Interval:
    """Percentile interval of bootstrap replicates (Efron & Tibshirani 1993, ch. 13)."""
    low, high = np.quantile(values_R, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level)
