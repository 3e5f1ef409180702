"""Several comparisons at once: p-values that hold for all of them together.

Shapes: M = comparisons, R = resamples.
"""

import numpy as np

from analysis.resampling import Floats


def holm(p_M: Floats) -> Floats:
    """Step-down p-values (Holm 1979): reject where they are at most alpha, and one false rejection among all M is no
    likelier than alpha, however the comparisons depend on each other."""
    order_M = np.argsort(p_M, kind="stable")
    scaled_M = p_M[order_M] * np.arange(len(p_M), 0, -1)
    adjusted_M = np.empty(len(p_M))
    adjusted_M[order_M] = np.minimum(np.maximum.accumulate(scaled_M), 1.0)
    return adjusted_M


def max_t(estimates_M: Floats, replicates_RM: Floats, *, null: float = 0.0) -> Floats:
    """Two-sided single-step p-values from the largest deviation of each resample (Westfall & Young 1993, ch. 2).

    Unlike Holm's they use how the comparisons depend on each other, so the replicates must come from the same
    resampled sessions. Each deviation is in units of its column's standard deviation. NaN: no value in that resample.

    Args:
        estimates_M: any unit.
        replicates_RM: the same statistics of each resample.
        null: their value where there is no effect.
    """
    spread_M = np.nanstd(replicates_RM, axis=0)
    varies_M = spread_M > 1e-12 * np.maximum(np.abs(estimates_M), 1e-300)
    adjusted_M = np.where(np.abs(estimates_M - null) > 1e-12, 1 / (len(replicates_RM) + 1), 1.0)
    if varies_M.any():
        scale_V = spread_M[varies_M]
        deviation_RV = np.abs(replicates_RM[:, varies_M] - estimates_M[varies_M]) / scale_V
        largest_R = np.nanmax(np.nan_to_num(deviation_RV), axis=1)
        observed_V = np.abs(estimates_M[varies_M] - null) / scale_V
        beyond_V = (largest_R[:, None] >= observed_V).sum(axis=0)
        adjusted_M[varies_M] = (1 + beyond_V) / (len(replicates_RM) + 1)
    return adjusted_M
