"""Two engines over the same sessions: what the candidate saves of the baseline's time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from analysis import stats
from analysis.stats import SMALLEST_SAMPLE, Integers, Interval, Median, MedianPair

OURS = "ostinato"
USUAL_BASELINE = "llamacpp"
TURN_KINDS = ("first", "tool", "user")


class AnalysisError(Exception):
    """A question that these records can't answer; the message says which they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``saved``: share of the baseline's total request time that the candidate saves; negative when it takes longer.

    Below ``SMALLEST_SAMPLE`` sessions the intervals and the p-value are None.
    """

    baseline: str
    candidate: str
    sessions: int
    baseline_s: float
    candidate_s: float
    saved: float
    interval: Interval | None
    """Bootstrap-t with the linearised standard error: the headline."""
    percentile: Interval | None
    won: int
    saved_by_session: Mapping[str, float]
    median_saved: float
    effective_sessions: float
    leave_one_out: tuple[float, float] | None
    p_value: float | None
    ttft: Mapping[str, MedianPair]
    """Turn kind → medians of TTFT compared; a kind without turns is not in it."""
    tpot: MedianPair | None

    @property
    def speedup(self) -> float:
        """Baseline's time over the candidate's."""
        return self.baseline_s / self.candidate_s

    @property
    def decided(self) -> bool:
        """Whether the interval excludes "no difference"."""
        return self.interval is not None and self.interval.excludes(0)


def choose_baseline(engines: Sequence[str], wanted: str | None = None) -> str:
    """``wanted``, else llama.cpp where it ran, else the first engine that is not ours, else the first.

    Raises:
        AnalysisError: ``wanted`` did not run.
    """
    if wanted is not None:
        if wanted not in engines:
            raise AnalysisError(
                f"no engine {wanted!r} with a finished session here; name one of {', '.join(engines)}"
            )
        return wanted
    others = [engine for engine in engines if engine != OURS]
    return USUAL_BASELINE if USUAL_BASELINE in engines else (others or list(engines))[0]


def session_times(turns: pd.DataFrame, sessions: Sequence[str], metric: str = "stream_s") -> pd.DataFrame:
    """Sum of a metric over a session's turns, sessions × engines; of ``stream_s`` it is the total request time.

    A session that was repeated counts once, with the mean of its repeats.
    """
    totals = turns[turns["session_id"].isin(sessions)].groupby(["session_id", "repeat", "engine"])[metric].sum()
    return totals.groupby(["session_id", "engine"]).mean().unstack("engine").reindex(list(sessions))


@dataclass(frozen=True, slots=True)
class Medians:
    """One engine's medians over turns."""

    ttft: Mapping[str, Median]
    """Turn kind → seconds; a kind without turns is not in it."""
    tpot: Median | None
    """Seconds a token."""


def medians(turns: pd.DataFrame, sessions: Sequence[str], counts_RS: Integers) -> Medians:
    """Medians of one engine's measured turns; ``counts_RS`` draws from ``sessions``."""
    position = pd.Index(sessions)

    def over(part: pd.DataFrame, metric: str) -> Median | None:
        part = part[part[metric].notna()]
        session_N = position.get_indexer(pd.Index(part["session_id"]))
        return stats.cluster_median(part[metric].to_numpy(np.float64), session_N, counts_RS)

    ttft = {kind: found for kind in TURN_KINDS if (found := over(turns[turns["kind"] == kind], "ttft_s"))}
    return Medians(ttft, over(turns, "tpot_s"))


def compare(
    times: pd.DataFrame,
    medians: Mapping[str, Medians],
    baseline: str,
    candidate: str,
    counts_RS: Integers,
    rng: np.random.Generator,
) -> Comparison:
    """Compare two engines over the sessions of ``times``.

    Args:
        times: from ``session_times``; complete for both engines, at least one session.
        medians: of both engines, from the same ``counts_RS``.
        counts_RS: the resampled sessions, the same for everything that is compared.
        rng: draws the sign flips where there are too many to try all.
    """
    before_S, after_S = times[baseline].to_numpy(np.float64), times[candidate].to_numpy(np.float64)
    interval = percentile = p_value = None
    if len(times) >= SMALLEST_SAMPLE:
        interval, percentile = stats.saved_share_intervals(before_S, after_S, counts_RS)
        p_value = stats.sign_flip_p(before_S, after_S, rng)
    before, after = medians[baseline], medians[candidate]
    return Comparison(
        baseline=baseline,
        candidate=candidate,
        sessions=len(times),
        baseline_s=float(before_S.sum()),
        candidate_s=float(after_S.sum()),
        saved=stats.saved_share(before_S, after_S),
        interval=interval,
        percentile=percentile,
        won=stats.sessions_won(before_S, after_S),
        saved_by_session=dict(zip(map(str, times.index), (1 - after_S / before_S).tolist(), strict=True)),
        median_saved=stats.median_saving(before_S, after_S),
        effective_sessions=stats.effective_sessions(before_S),
        leave_one_out=stats.leave_one_out(before_S, after_S),
        p_value=p_value,
        ttft={k: stats.paired_medians(before.ttft[k], after.ttft[k]) for k in before.ttft if k in after.ttft},
        tpot=stats.paired_medians(before.tpot, after.tpot) if before.tpot and after.tpot else None,
    )


def compare_all(
    times: pd.DataFrame, medians: Mapping[str, Medians], baseline: str, counts_RS: Integers, *, seed: int
) -> tuple[Comparison, ...]:
    """Every engine against the baseline, ours first; then the other pairs, where the faster one is the candidate."""
    engines = sorted((str(engine) for engine in times.columns if engine != baseline), key=lambda name: name != OURS)
    totals = times.sum()
    pairs = [(baseline, engine) for engine in engines]
    for one, other in combinations(engines, 2):
        pairs.append((one, other) if totals[other] <= totals[one] else (other, one))
    return tuple(
        compare(times, medians, before, after, counts_RS, np.random.default_rng(seed)) for before, after in pairs
    )
