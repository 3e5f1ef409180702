"""The share of the baseline's time that the candidate saves, ``s = 1 - sum(B) / sum(A)``, and how sure it is.

Shapes: S = sessions, R = resamples, K = repeats of a session (may differ between the engines). Times are positive.
"""

from dataclasses import dataclass

import numpy as np

from analysis.resampling import LEVEL, Floats, Integers, Interval, drawn_means, drawn_sessions, percentile_interval

_NO_ERROR = 1e-12


@dataclass(frozen=True, slots=True)
class SavedShare:
    """A saved share with its resamples."""

    value: float
    error: float
    """Linearised standard error, see ``saved_share_error``."""
    resampled: Floats
    """The share of each resample, ``[R]``."""
    t: Floats
    """``(s* - s) / e*`` of each resample, ``[R]``."""

    def studentised(self, level: float = LEVEL) -> Interval:
        """Bootstrap-t: ``[s - q(1 - a/2) e, s - q(a/2) e]``, q the quantiles of ``t`` (Efron & Tibshirani 1993,
        ch. 12.5). Where all sessions save the same share there is nothing to resample: the interval is that share.
        """
        if self.error <= _NO_ERROR:
            return Interval(self.value, self.value, level)
        t_low, t_high = np.quantile(self.t, [(1 - level) / 2, (1 + level) / 2])
        # Nothing saves more than everything.
        return Interval(
            float(self.value - t_high * self.error), min(1.0, float(self.value - t_low * self.error)), level
        )

    def percentile(self, level: float = LEVEL) -> Interval:
        return percentile_interval(self.resampled, level=level)

    def p_longer(self) -> float:
        """One-sided p-value of "the candidate takes no longer"; the bootstrap-t interval turned round."""
        resamples = len(self.t)
        if self.error <= _NO_ERROR:
            return 1.0 if self.value > -_NO_ERROR else 1 / (resamples + 1)
        return (1 + int((self.t <= self.value / self.error).sum())) / (resamples + 1)


def saved_share(baseline_S: Floats, candidate_S: Floats) -> float:
    """``1 - sum(B) / sum(A)``: a ratio of sums, so that a long session weighs what it costs."""
    return float(1 - candidate_S.sum() / baseline_S.sum())


def saved_share_error(baseline_S: Floats, candidate_S: Floats) -> float:
    """Linearised standard error of the saved share (Cochran 1977, ch. 6; Efron & Tibshirani 1993, ch. 12).

    ``sqrt(n / (n - 1) * sum(d**2)) / sum(A)`` with the residuals ``d = B - r A`` and ``r = sum(B) / sum(A)``.
    """
    n = len(baseline_S)
    residual_S = candidate_S - candidate_S.sum() / baseline_S.sum() * baseline_S
    return float(np.sqrt(n / (n - 1) * np.square(residual_S).sum()) / baseline_S.sum())


def bootstrap_saved_share(
    baseline: Floats, candidate: Floats, counts_RS: Integers, rng: np.random.Generator | None = None
) -> SavedShare:
    """The saved share with its resamples; sessions are drawn in pairs.

    Args:
        baseline: ``[S]``, or ``[S, K]`` for repeats. A session counts with the mean of its repeats; each resample
            draws them anew, so that few noisy repeats are not taken for the truth about a session.
        candidate: likewise.
        counts_RS: from ``resample``, at least two sessions.
        rng: draws the repeats; needed where there are some.
    """
    before_SK, after_SK = (times[:, None] if times.ndim == 1 else times for times in (baseline, candidate))
    before_S, after_S = before_SK.mean(axis=1), after_SK.mean(axis=1)
    saved, error = saved_share(before_S, after_S), saved_share_error(before_S, after_S)
    if max(before_SK.shape[1], after_SK.shape[1]) == 1:
        if error <= _NO_ERROR:
            return SavedShare(saved, error, np.full(len(counts_RS), saved), np.zeros(len(counts_RS)))
        return _one_level(before_S, after_S, counts_RS, saved, error)
    assert rng is not None
    return _two_levels(before_SK, after_SK, drawn_sessions(counts_RS), saved, error, rng)


def _one_level(
    baseline_S: Floats, candidate_S: Floats, counts_RS: Integers, saved: float, error: float
) -> SavedShare:
    # Residuals of the whole sample keep the sums below small, so no digits cancel when the ratio hardly varies.
    residual_S = candidate_S - (1 - saved) * baseline_S
    moments_S5 = np.stack(
        [baseline_S, residual_S, residual_S**2, residual_S * baseline_S, baseline_S**2],
        axis=1,
    )
    a_R, d_R, dd_R, da_R, aa_R = (counts_RS.astype(np.float64) @ moments_S5).T
    shift_R = d_R / a_R  # r* - r = -(s* - s)
    square_R = np.maximum(dd_R - 2 * shift_R * da_R + shift_R**2 * aa_R, 0)
    return _studentise(saved, error, shift_R, square_R, a_R, sessions=len(baseline_S))


def _two_levels(
    baseline_SK: Floats,
    candidate_SK: Floats,
    drawn_RS: Integers,
    saved: float,
    error: float,
    rng: np.random.Generator,
) -> SavedShare:
    a_RS = drawn_means(baseline_SK, drawn_RS, rng)
    d_RS = drawn_means(candidate_SK, drawn_RS, rng) - (1 - saved) * a_RS
    a_R = a_RS.sum(axis=1)
    shift_R = d_RS.sum(axis=1) / a_R
    square_R = np.square(d_RS - shift_R[:, None] * a_RS).sum(axis=1)
    return _studentise(saved, error, shift_R, square_R, a_R, sessions=len(baseline_SK))


def _studentise(
    saved: float, error: float, shift_R: Floats, square_R: Floats, a_R: Floats, *, sessions: int
) -> SavedShare:
    error_R = np.sqrt(sessions / (sessions - 1) * square_R) / a_R
    # Without the one session that differs, a resample claims (almost) no error. It may push the interval far out, as
    # it should, but not to where only rounding decides.
    t_R = -shift_R / np.maximum(error_R, max(1e-3 * error, _NO_ERROR))
    return SavedShare(saved, error, saved - shift_R, t_R)


def saved_share_intervals(
    baseline: Floats,
    candidate: Floats,
    counts_RS: Integers,
    rng: np.random.Generator | None = None,
    *,
    level: float = LEVEL,
) -> tuple[Interval, Interval]:
    """Bootstrap-t and percentile interval; arguments as ``bootstrap_saved_share``'s."""
    found = bootstrap_saved_share(baseline, candidate, counts_RS, rng)
    return found.studentised(level), found.percentile(level)


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
