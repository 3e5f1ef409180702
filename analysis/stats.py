"""Intervals and tests whose unit is the session, under one name. Arrays and a generator in, numbers out.

Each concept has its module; shapes are told there. S = sessions, R = resamples, N = values (turns) of all sessions.
"""

from analysis.cluster import (
    Median,
    MedianPair,
    cluster_median,
    cluster_quantile,
    paired_medians,
    resampled_medians,
    resampled_quantiles,
)
from analysis.multiple import holm, max_t
from analysis.permutation import EXACT_FLIPS, sign_flip_p
from analysis.resampling import (
    LEVEL,
    RESAMPLES,
    SMALLEST_SAMPLE,
    Floats,
    Integers,
    Interval,
    percentile_interval,
    repeat_counts,
    resample,
)
from analysis.saved_share import (
    SavedShare,
    bootstrap_saved_share,
    effective_sessions,
    leave_one_out,
    median_saving,
    saved_share,
    saved_share_error,
    saved_share_intervals,
    sessions_won,
)

__all__ = [
    "EXACT_FLIPS",
    "LEVEL",
    "RESAMPLES",
    "SMALLEST_SAMPLE",
    "Floats",
    "Integers",
    "Interval",
    "Median",
    "MedianPair",
    "SavedShare",
    "bootstrap_saved_share",
    "cluster_median",
    "cluster_quantile",
    "effective_sessions",
    "holm",
    "leave_one_out",
    "max_t",
    "median_saving",
    "paired_medians",
    "percentile_interval",
    "repeat_counts",
    "resample",
    "resampled_medians",
    "resampled_quantiles",
    "saved_share",
    "saved_share_error",
    "saved_share_intervals",
    "sessions_won",
    "sign_flip_p",
]
