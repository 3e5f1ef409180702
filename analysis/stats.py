"""Intervals and tests whose unit is the session. Arrays and a generator in, numbers out.

Shapes: S = sessions, R = resamples, N = values (turns) of all sessions.
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
EXACT_FLIPS = 16
"""Sessions up to which all ``2**S`` sign flips are tried; above, ``RESAMPLES`` random ones."""


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


def percentile_interval(values_R: Floats, *, level: float = LEVEL) -> Interval:
    """Percentile interval of bootstrap replicates (Efron & Tibshirani 1993, ch. 13)."""
    low, high = np.quantile(values_R, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level)


# -- the share of the baseline's time that the candidate saves: s = 1 - sum(B) / sum(A) -----------------------------


def saved_share(baseline_S: Floats, candidate_S: Floats) -> float:
    """``1 - sum(B) / sum(A)``: a ratio of sums, so that a long session weighs what it costs. Times are positive."""
    return float(1 - candidate_S.sum() / baseline_S.sum())


def saved_share_error(baseline_S: Floats, candidate_S: Floats) -> float:
    """Linearised standard error of the saved share (Cochran 1977, ch. 6; Efron & Tibshirani 1993, ch. 12).

    ``sqrt(n / (n - 1) * sum(d**2)) / sum(A)`` with the residuals ``d = B - r A`` and ``r = sum(B) / sum(A)``.
    """
    n = len(baseline_S)
    residual_S = candidate_S - candidate_S.sum() / baseline_S.sum() * baseline_S
    return float(np.sqrt(n / (n - 1) * np.square(residual_S).sum()) / baseline_S.sum())


def saved_share_intervals(
    baseline_S: Floats, candidate_S: Floats, counts_RS: Integers, *, level: float = LEVEL
) -> tuple[Interval, Interval]:
    """Bootstrap-t and percentile interval of the saved share; sessions resampled in pairs.

    The bootstrap-t interval is ``[s - q(1 - a/2) e, s - q(a/2) e]`` with ``e`` the linearised standard error and
    ``q`` the quantiles of ``(s* - s) / e*`` over the resamples (Efron & Tibshirani 1993, ch. 12.5). When all
    sessions save the same share there is nothing to resample: both intervals are that share.
    """
    n = len(baseline_S)
    saved = saved_share(baseline_S, candidate_S)
    error = saved_share_error(baseline_S, candidate_S)
    if error <= 1e-12:
        return Interval(saved, saved, level), Interval(saved, saved, level)
    # Residuals of the whole sample keep the sums below small, so no digits cancel when the ratio hardly varies.
    residual_S = candidate_S - (1 - saved) * baseline_S
    moments_S5 = np.stack(
        [baseline_S, residual_S, residual_S**2, residual_S * baseline_S, baseline_S**2],
        axis=1,
    )
    a_R, d_R, dd_R, da_R, aa_R = (counts_RS.astype(np.float64) @ moments_S5).T
    shift_R = d_R / a_R  # r* - r = -(s* - s)
    square_R = np.maximum(dd_R - 2 * shift_R * da_R + shift_R**2 * aa_R, 0)
    error_R = np.sqrt(n / (n - 1) * square_R) / a_R
    # Without the one session that differs, a resample claims (almost) no error. It may push the interval far out, as
    # it should, but not to where only rounding decides.
    t_R = -shift_R / np.maximum(error_R, 1e-3 * error)
    t_low, t_high = np.quantile(t_R, [(1 - level) / 2, (1 + level) / 2])
    # Nothing saves more than everything.
    studentised = Interval(float(saved - t_high * error), min(1.0, float(saved - t_low * error)), level)
    return studentised, percentile_interval(saved - shift_R, level=level)


def sessions_won(baseline_S: Floats, candidate_S: Floats) -> int:
    """Sessions that the candidate finishes sooner."""
    return int((candidate_S < baseline_S).sum())


def median_saving(baseline_S: Floats, candidate_S: Floats) -> float:
    """Median over sessions of ``1 - B / A``: each session weighs the same."""
    return float(np.median(1 - candidate_S / baseline_S))


def effective_sessions(weights_S: Floats) -> float:
    """``(sum w)**2 / sum(w**2)`` (Kish 1965): the number of equally long sessions that would weigh the same."""
    return float(weights_S.sum() ** 2 / np.square(weights_S).sum())


def leave_one_out(baseline_S: Floats, candidate_S: Floats) -> tuple[float, float] | None:
    """Lowest and highest saved share when any one session is left out; None for a single session."""
    if len(baseline_S) < 2:
        return None
    share_S: Floats = 1 - (candidate_S.sum() - candidate_S) / (baseline_S.sum() - baseline_S)
    return float(share_S.min()), float(share_S.max())


def sign_flip_p(baseline_S: Floats, candidate_S: Floats, rng: np.random.Generator) -> float:
    """Two-sided sign-flip permutation test of "the labels of a session's two times may be swapped".

    The share of flips with ``abs(sum(+-d)) >= abs(sum(d))``, ``d = A - B``. Exact up to ``EXACT_FLIPS`` sessions,
    else ``RESAMPLES`` random flips, the observed one counted (Phipson & Smyth 2010).
    """
    difference_S = baseline_S - candidate_S
    n = len(difference_S)
    exact = n <= EXACT_FLIPS
    bits_FS = np.arange(2**n)[:, None] >> np.arange(n) & 1 if exact else rng.integers(0, 2, (RESAMPLES, n))
    signs_FS = bits_FS * 2.0 - 1
    tolerance = 1e-12 * float(np.abs(difference_S).sum())  # sums of other order are equal to rounding only
    extreme = int((np.abs(signs_FS @ difference_S) >= abs(float(difference_S.sum())) - tolerance).sum())
    return extreme / len(signs_FS) if exact else (extreme + 1) / (len(signs_FS) + 1)


# -- medians of turns, sessions resampled ---------------------------------------------------------------------------


def resampled_medians(values_N: Floats, session_N: Integers, counts_RS: Integers, *, chunk: int = 256) -> Floats:
    """Median of the pooled turns of each resample, ``[R]``: sessions are drawn, never single turns.

    Args:
        values_N: one value a turn, any unit.
        session_N: the session of each, an index into the columns of ``counts_RS``.
        counts_RS: from ``resample``.
        chunk: resamples worked on at once; 256 × 900 turns stay in the cache of a core.
    """
    order_N = np.argsort(values_N, kind="stable")
    sorted_N, owner_N = values_N[order_N], session_N[order_N]
    counts_SR = np.ascontiguousarray(counts_RS.T, dtype=np.int32)
    medians_R = np.full(len(counts_RS), np.nan)
    for start in range(0, len(counts_RS), chunk):
        drawn_NC = counts_SR[:, start : start + chunk][owner_N]  # copies of each turn, in the order of values
        np.cumsum(drawn_NC, axis=0, out=drawn_NC)
        total_C = drawn_NC[-1]
        lower_C = (drawn_NC <= (total_C - 1) // 2).sum(axis=0)
        upper_C = (drawn_NC <= total_C // 2).sum(axis=0)
        some_C = total_C > 0  # a resample may hold no turn at all when some sessions have none
        lower_C, upper_C = lower_C[some_C], upper_C[some_C]
        medians_R[start : start + chunk][some_C] = (sorted_N[lower_C] + sorted_N[upper_C]) / 2
    return medians_R


@dataclass(frozen=True, slots=True)
class Median:
    """A median over turns; ``interval`` is None below ``SMALLEST_SAMPLE`` sessions."""

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


def cluster_median(values_N: Floats, session_N: Integers, counts_RS: Integers) -> Median | None:
    """Median of the pooled turns with a percentile interval, sessions resampled; None without turns."""
    if not len(values_N):
        return None
    value, sessions = float(np.median(values_N)), len(np.unique(session_N))
    if sessions < SMALLEST_SAMPLE:
        return Median(value, len(values_N), sessions, None, None)
    medians_R = resampled_medians(values_N, session_N, counts_RS)
    interval = percentile_interval(medians_R[np.isfinite(medians_R)])
    return Median(value, len(values_N), sessions, interval, medians_R)


def paired_medians(baseline: Median, candidate: Median) -> MedianPair:
    """Ratio and difference of two engines' medians, which come from the same ``counts_RS``."""
    ratio, difference = candidate.value / baseline.value, candidate.value - baseline.value
    before_R, after_R = baseline.replicates, candidate.replicates
    if before_R is None or after_R is None:
        return MedianPair(ratio, difference, None, None)
    both_R = np.isfinite(before_R) & np.isfinite(after_R)
    before_R, after_R = before_R[both_R], after_R[both_R]
    return MedianPair(
        ratio, difference, percentile_interval(after_R / before_R), percentile_interval(after_R - before_R)
    )
