"""By how much a metric got worse from one side to the other, over the turns that both have, with its interval.

Worse is positive whatever the metric's direction: 0.05 is "5 % slower", or "5 % less" of what should be high.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis import stats
from analysis.metric import Direction, Metric, Over
from analysis.stats import SMALLEST_SAMPLE, Floats, Integers, Interval

SEED = 20_261_130
"""Of the resampling: the same records give the same verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """None: no value, and ``reason`` says why; without an interval it says that too."""

    metric: str
    kind: str | None
    """Turn kind; None for all turns."""
    sessions: int
    turns: int
    base: float | None = None
    candidate: float | None = None
    change: float | None = None
    interval: Interval | None = None
    p: float | None = None
    """One-sided, of "it did not get worse"."""
    error: float | None = None
    """Standard error of the change; None of a median."""
    reason: str = ""

    @property
    def name(self) -> str:
        """``ttft_s:tool``, as ``--metric`` takes it."""
        return self.metric if self.kind is None else f"{self.metric}:{self.kind}"


def measure(
    base: pd.DataFrame,
    candidate: pd.DataFrame,
    sessions: Sequence[str],
    metric: Metric,
    kind: str | None,
    counts_RS: Integers | None,
) -> Change:
    """Compare one metric of the sides' turns.

    Args:
        base: ``side.TURN_COLUMNS`` and the metric's column.
        candidate: likewise.
        sessions: those that both finished.
        kind: only turns of this kind.
        counts_RS: resampled sessions, the same for all that is compared; None: points only.
    """
    before, after = (_of_kind(turns, sessions, metric.name, kind) for turns in (base, candidate))
    known = set(before["session_id"])
    here = [session for session in sessions if session in known]
    found = Change(metric=metric.name, kind=kind, sessions=len(here), turns=len(before.drop_duplicates(_KEY)))
    if not here:
        return replace(found, reason="no such turn")
    if metric.over is Over.SUM:
        return _sums(found, metric, before, after, here, sessions, counts_RS)
    return _medians(found, metric, before, after, sessions, counts_RS)


_KEY = ["session_id", "turn"]
Key = tuple[str, int]


def _of_kind(turns: pd.DataFrame, sessions: Sequence[str], name: str, kind: str | None) -> pd.DataFrame:
    kept = turns["session_id"].isin(sessions) & ((turns["kind"] == kind) if kind else True)
    return turns[kept].assign(value=pd.to_numeric(turns[kept][name]).astype(np.float64))


def _points(found: Change, base: float, candidate: float, change: float) -> Change:
    reason = f"no interval below {SMALLEST_SAMPLE} sessions"
    return replace(found, base=base, candidate=candidate, change=change, reason=reason)


# -- sums: the ratio of the sessions' sums --------------------------------------------------------------------------


def _sums(
    found: Change,
    metric: Metric,
    before: pd.DataFrame,
    after: pd.DataFrame,
    here: Sequence[str],
    sessions: Sequence[str],
    counts_RS: Integers | None,
) -> Change:
    for side, turns in (("base", before), ("candidate", after)):
        if lacking := int(turns["value"].isna().sum()):
            return replace(found, reason=f"{side}: {lacking} of {len(turns)} turns have no value ({metric.absent})")
    before_SK, after_SK = (_totals(turns, here) for turns in (before, after))
    base, candidate = float(before_SK.mean(axis=1).sum()), float(after_SK.mean(axis=1).sum())
    if (before_SK <= 0).any() or (after_SK <= 0).any():
        return replace(found, reason="a session's sum is not above 0, so there is no ratio")
    good, bad = (before_SK, after_SK) if metric.direction is Direction.LOWER else (after_SK, before_SK)
    change = float(bad.mean(axis=1).sum() / good.mean(axis=1).sum() - 1)
    if counts_RS is None or len(here) < SMALLEST_SAMPLE:
        return _points(found, base, candidate, change)
    rng = np.random.default_rng(SEED)
    if len(here) < len(sessions):  # the shared resamples draw from all sessions
        counts_RS = stats.resample(len(here), rng, resamples=len(counts_RS))
    share = stats.bootstrap_saved_share(good, bad, counts_RS, rng)
    saved = share.studentised()
    return replace(
        found, base=base, candidate=candidate, change=change,
        interval=Interval(-saved.high, -saved.low, saved.level), p=share.p_longer(), error=share.error,
    )  # fmt: skip


def _totals(turns: pd.DataFrame, sessions: Sequence[str]) -> Floats:
    """``[S, K]``."""
    sums = turns.groupby(["session_id", "repeat"])["value"].sum().unstack("repeat")
    totals_SK: Floats = sums.reindex(list(sessions)).to_numpy(np.float64)
    return totals_SK


# -- medians over turns ---------------------------------------------------------------------------------------------


def _medians(
    found: Change,
    metric: Metric,
    before: pd.DataFrame,
    after: pd.DataFrame,
    sessions: Sequence[str],
    counts_RS: Integers | None,
) -> Change:
    lacking = {key for turns in (before, after) for key in _keys(turns[turns["value"].isna()])}
    before, after = (_except(turns, lacking) for turns in (before, after))
    if not len(before):
        return replace(found, reason=f"no turn has a value on both sides ({metric.absent})")
    found = replace(found, sessions=before["session_id"].nunique(), turns=len(before.drop_duplicates(_KEY)))
    base, candidate = float(before["value"].median()), float(after["value"].median())
    if base <= 0 or candidate <= 0:
        return replace(found, reason="a median is not above 0, so there is no ratio")
    change = candidate / base - 1 if metric.direction is Direction.LOWER else base / candidate - 1
    if counts_RS is None or found.sessions < SMALLEST_SAMPLE:
        return _points(found, base, candidate, change)
    rng = np.random.default_rng(SEED)
    base_R, candidate_R = (_resampled(turns, sessions, counts_RS, rng) for turns in (before, after))
    ratio_R = candidate_R / base_R if metric.direction is Direction.LOWER else base_R / candidate_R
    change_R = ratio_R[np.isfinite(ratio_R)] - 1
    p = (1 + int((change_R <= 0).sum())) / (len(change_R) + 1)
    return replace(
        found, base=base, candidate=candidate, change=change, interval=stats.percentile_interval(change_R), p=p
    )


def _keys(turns: pd.DataFrame) -> list[Key]:
    return list(zip(turns["session_id"], turns["turn"], strict=True))


def _except(turns: pd.DataFrame, keys: set[Key]) -> pd.DataFrame:
    """Without the turns that lack a value in any repeat of either side: both medians are over the same turns."""
    if not keys:
        return turns
    return turns[[key not in keys for key in _keys(turns)]]


def _resampled(turns: pd.DataFrame, sessions: Sequence[str], counts_RS: Integers, rng: np.random.Generator) -> Floats:
    repeats = pd.Index(sorted(turns["repeat"].unique()))
    session_N = pd.Index(list(sessions)).get_indexer(pd.Index(turns["session_id"]))
    unit_N = session_N * len(repeats) + repeats.get_indexer(pd.Index(turns["repeat"]))
    counts_RU = stats.repeat_counts(counts_RS, len(repeats), rng)
    return stats.resampled_medians(turns["value"].to_numpy(np.float64), unit_N, counts_RU)
