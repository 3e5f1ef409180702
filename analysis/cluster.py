"""Medians and other quantiles of turns, where sessions are resampled and never single turns.

Shapes: N = turns of all sessions, R = resamples, U = what is drawn: sessions, or their repeats (``repeat_counts``).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.resampling import SMALLEST_SAMPLE, Floats, Integers, Interval, percentile_interval

Singles = NDArray[np.float32]


def resampled_quantiles(
    values_N: Floats, unit_N: Integers, counts_RU: Integers, q: float, *, chunk: int = 1024
) -> Floats:
    """Quantile of the pooled turns of each resample, ``[R]``, linear between values (Hyndman & Fan 1996, type 7).

    Args:
        values_N: one value a turn, any unit.
        unit_N: the session (or repeat) of each, an index into the columns of ``counts_RU``.
        counts_RU: from ``resample`` or ``repeat_counts``.
        q: 0 to 1.
        chunk: resamples worked on at once, so that they stay in the cache of a core.

    Returns:
        NaN for a resample that holds no turn at all, as some do when few sessions have any.
    """
    order_N = np.argsort(values_N, kind="stable")
    sorted_N, owner_N = values_N[order_N], unit_N[order_N]
    drawn_RU = np.ascontiguousarray(counts_RU, dtype=np.float32)  # exact up to 2**24 turns, and fast
    upto_NU = np.zeros((len(values_N), drawn_RU.shape[1]), np.float32)  # turns of each unit among the n + 1 smallest
    upto_NU[np.arange(len(values_N)), owner_N] = 1
    np.cumsum(upto_NU, axis=0, out=upto_NU)
    total_R = drawn_RU @ upto_NU[-1]
    some_R = total_R > 0
    place_R = q * np.maximum(total_R.astype(np.float64) - 1, 0)
    rank_R = np.floor(place_R)
    lower_R = np.concatenate(
        [
            _ranked(drawn_RU[start : start + chunk], upto_NU, rank_R[start : start + chunk])
            for start in range(0, len(drawn_RU), chunk)
        ]
    )
    # The next value of a unit that was drawn, unless the resample holds the lower one more often than to its rank.
    upper_R = lower_R.copy()
    reached_R = np.einsum("ru,ru->r", drawn_RU, upto_NU[lower_R])
    waiting = np.flatnonzero(some_R & (reached_R <= np.minimum(rank_R + 1, total_R - 1)))
    upper_R[waiting] += 1
    while len(waiting := waiting[drawn_RU[waiting, owner_N[upper_R[waiting]]] == 0]):
        upper_R[waiting] += 1
    share_R, lower_values_R, upper_values_R = place_R - rank_R, sorted_N[lower_R], sorted_N[upper_R]
    between_R = lower_values_R * (1 - share_R) + upper_values_R * share_R
    # As numpy's median has it: halves of two subnormal numbers would be 0 each.
    quantiles_R: Floats = np.where(share_R == 0.5, (lower_values_R + upper_values_R) / 2, between_R)
    quantiles_R[~some_R] = np.nan
    return quantiles_R


def _ranked(counts_CU: Singles, upto_NU: Singles, rank_C: Floats) -> Integers:
    """By bisection, of each resample the first n at which its n + 1 smallest turns are more than ``rank``."""
    low_C = np.full(len(counts_CU), -1, np.int64)
    high_C = np.full(len(counts_CU), len(upto_NU) - 1, np.int64)
    while (high_C - low_C > 1).any():
        middle_C = np.maximum((low_C + high_C) // 2, 0)
        over_C = np.einsum("ru,ru->r", counts_CU, upto_NU[middle_C]) > rank_C
        high_C = np.where(over_C, middle_C, high_C)
        low_C = np.where(over_C, low_C, middle_C)
    return high_C


def resampled_medians(values_N: Floats, unit_N: Integers, counts_RU: Integers, *, chunk: int = 1024) -> Floats:
    """Median of the pooled turns of each resample, ``[R]``; see ``resampled_quantiles``."""
    return resampled_quantiles(values_N, unit_N, counts_RU, 0.5, chunk=chunk)


@dataclass(frozen=True, slots=True)
class Median:
    """A median (or another quantile) over turns; ``interval`` is None below ``SMALLEST_SAMPLE`` sessions."""

    value: float
    turns: int
    sessions: int
    """Sessions that have such turns."""
    interval: Interval | None
    replicates: Floats | None
    """The median of each resample; None without an interval."""


@dataclass(frozen=True, slots=True)
class MedianPair:
    """Candidate against baseline, the same sessions resampled for both."""

    ratio: float
    difference: float
    ratio_interval: Interval | None
    difference_interval: Interval | None
    ratios: Floats | None = None
    """The ratio of each resample, NaN where one of the two has no turn; None without an interval."""


def cluster_quantile(
    values_N: Floats, unit_N: Integers, counts_RU: Integers, q: float, *, repeats: int = 1
) -> Median | None:
    """Quantile of the pooled turns with a percentile interval, sessions resampled; None without turns.

    Args:
        repeats: K where ``counts_RU`` draws repeats of sessions, session s's repeat k at ``s * K + k``.
    """
    if not len(values_N):
        return None
    value, sessions = float(np.quantile(values_N, q)), len(np.unique(unit_N // repeats))
    if sessions < SMALLEST_SAMPLE:
        return Median(value, len(values_N), sessions, None, None)
    values_R = resampled_quantiles(values_N, unit_N, counts_RU, q)
    interval = percentile_interval(values_R[np.isfinite(values_R)])
    return Median(value, len(values_N), sessions, interval, values_R)


def cluster_median(values_N: Floats, unit_N: Integers, counts_RU: Integers, *, repeats: int = 1) -> Median | None:
    """``cluster_quantile`` at one half."""
    return cluster_quantile(values_N, unit_N, counts_RU, 0.5, repeats=repeats)


def paired_medians(baseline: Median, candidate: Median) -> MedianPair:
    """Ratio and difference of two engines' medians, which come from the same resampled sessions."""
    ratio, difference = candidate.value / baseline.value, candidate.value - baseline.value
    before_R, after_R = baseline.replicates, candidate.replicates
    if before_R is None or after_R is None:
        return MedianPair(ratio, difference, None, None)
    ratio_R, difference_R = after_R / before_R, after_R - before_R
    return MedianPair(
        ratio,
        difference,
        percentile_interval(ratio_R[np.isfinite(ratio_R)]),
        percentile_interval(difference_R[np.isfinite(difference_R)]),
        ratio_R,
    )
