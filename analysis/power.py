"""What a number of sessions can tell: false alarms, the smallest effect seen, how many sessions a verdict needs."""

from collections.abc import Callable

import numpy as np
from scipy.special import ndtri, stdtrit

from analysis.resampling import LEVEL, SMALLEST_SAMPLE, Floats, resample
from analysis.saved_share import SavedShare, bootstrap_saved_share

POWER = 0.9
"""Chance to see the smallest detectable effect."""
RELABELLINGS = 200
_RELABELLED_RESAMPLES = 1_000
MOST_SESSIONS = 100_000
"""A verdict that needs more is out of reach: the effect is as large as the margin."""


def shows_difference(found: SavedShare) -> bool:
    """The headline's alarm: its interval excludes "no difference"."""
    return found.studentised().excludes(0)


def aa_false_alarm_rate(
    one_S: Floats,
    other_S: Floats,
    rng: np.random.Generator,
    *,
    alarm: Callable[[SavedShare], bool] = shows_difference,
    relabellings: int = RELABELLINGS,
) -> float:
    """How often one engine measured twice looks like two, sessions ``[S]`` in the same order.

    Each session's two times keep or swap their labels by a coin, which gives as many further A/A pairs with the
    machine's own noise; the share of these that raise an alarm. The nominal rate is ``1 - LEVEL``.
    """
    counts_RS = resample(len(one_S), rng, resamples=_RELABELLED_RESAMPLES)
    swapped_FS = rng.integers(0, 2, (relabellings, len(one_S))).astype(bool)
    alarms = sum(
        alarm(bootstrap_saved_share(np.where(swap_S, other_S, one_S), np.where(swap_S, one_S, other_S), counts_RS))
        for swap_S in swapped_FS
    )
    return alarms / relabellings


def smallest_effect(
    error: float, sessions: int, *, margin: float = 0.0, level: float = LEVEL, power: float = POWER
) -> float:
    """Smallest change that is seen with probability ``power``, as a share of the baseline's time.

    Seen: the interval excludes 0 and the estimate is beyond ``margin``, so it is the larger of ``(t + z) e`` and
    ``margin + z e``; t the quantile of Student's distribution at ``sessions - 1``, z the normal one at ``power``
    (Cohen 1988, ch. 2).

    Args:
        error: standard error of the saved share.
    """
    t, z = float(stdtrit(sessions - 1, (1 + level) / 2)), float(ndtri(power))
    return max((t + z) * error, margin + z * error)


def widening(comparisons: float, *, level: float = LEVEL) -> float:
    """By how much an interval is wider that holds for so many comparisons together (Bonferroni, normal)."""
    beyond = (1 - level) / 2
    return float(ndtri(beyond / comparisons) / ndtri(beyond))


def sessions_needed(half_width: float, distance: float, sessions: int) -> int | None:
    """How many sessions would bring an interval's end to within ``distance`` of the estimate; None: out of reach.

    The width falls with the root of the number of sessions, as long as further ones differ as much as these.

    Args:
        half_width: from the estimate to that end now.
        distance: from the estimate to where that end must get.
        sessions: now.
    """
    if distance <= 0:
        return None
    needed = sessions * (half_width / distance) ** 2
    return None if needed > MOST_SESSIONS else max(int(np.ceil(needed - 1e-9)), sessions, SMALLEST_SAMPLE)
