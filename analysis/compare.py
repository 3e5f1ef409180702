"""Two engines over the same sessions: what the candidate saves of the baseline's time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
import pandas as pd

from analysis import power, stats
from analysis.stats import SMALLEST_SAMPLE, Floats, Integers, Interval, Median, MedianPair

MOST_PAIRS = 100
"""Besides those with the baseline. Nobody reads the 125,000 of 500 runs, and they would take hours."""
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
    adjusted_p: Mapping[str, float] = field(default_factory=dict)
    """Turn kind, or ``tpot`` → p-value of "the two medians are equal" that holds for all of them and for all
    candidates against this baseline together (max-t, shared resamples)."""
    error: float | None = None
    """Linearised standard error of ``saved``."""
    smallest_effect: float | None = None
    """Smallest change of the time, as a share of the baseline's, that so many sessions show with 90 % probability."""
    false_alarm_rate: float | None = None
    """One engine against itself: how often its interval would claim a difference; None for two engines."""

    @property
    def against_itself(self) -> bool:
        """Whether the two are one engine at the same settings, measured twice: an A/A comparison."""
        return self.false_alarm_rate is not None

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


def repeated_times(turns: pd.DataFrame, sessions: Sequence[str], metric: str = "stream_s") -> Floats:
    """Sum of a metric over a session's turns of one engine, for each of its repeats: ``[S, K]``."""
    totals = turns[turns["session_id"].isin(sessions)].groupby(["session_id", "repeat"])[metric].sum()
    times_SK: Floats = totals.unstack("repeat").reindex(list(sessions)).to_numpy(np.float64)
    return times_SK


@dataclass(frozen=True, slots=True)
class Medians:
    """One engine's medians over turns."""

    ttft: Mapping[str, Median]
    """Turn kind → seconds; a kind without turns is not in it."""
    tpot: Median | None
    """Seconds a token."""


def medians(
    turns: pd.DataFrame, sessions: Sequence[str], counts_RS: Integers, rng: np.random.Generator | None = None
) -> Medians:
    """Medians of one engine's measured turns; ``counts_RS`` draws from ``sessions``.

    Args:
        rng: draws the repeats of each session drawn; None takes every repeat of it.
    """
    position, repeats = pd.Index(sessions), pd.Index(sorted(turns["repeat"].unique()))
    levels = 1 if rng is None else max(len(repeats), 1)
    counts_RU = counts_RS if rng is None else stats.repeat_counts(counts_RS, levels, rng)

    def over(part: pd.DataFrame, metric: str) -> Median | None:
        part = part[part[metric].notna()]
        unit_N = position.get_indexer(pd.Index(part["session_id"]))
        if levels > 1:
            unit_N = unit_N * levels + repeats.get_indexer(pd.Index(part["repeat"]))
        return stats.cluster_median(part[metric].to_numpy(np.float64), unit_N, counts_RU, repeats=levels)

    ttft = {kind: found for kind in TURN_KINDS if (found := over(turns[turns["kind"] == kind], "ttft_s"))}
    return Medians(ttft, over(turns, "tpot_s"))


def compare(
    times: pd.DataFrame,
    medians: Mapping[str, Medians],
    baseline: str,
    candidate: str,
    counts_RS: Integers,
    rng: np.random.Generator,
    *,
    repeated: Mapping[str, Floats] | None = None,
    against_itself: bool = False,
) -> Comparison:
    """Compare two engines over the sessions of ``times``.

    Args:
        times: from ``session_times``; complete for both engines, at least one session.
        medians: of both engines, from the same ``counts_RS``.
        counts_RS: the resampled sessions, the same for everything that is compared.
        rng: draws the sign flips where there are too many to try all, and the repeats.
        repeated: from ``repeated_times``, each engine's repeats; None: ``times`` is all there is.
        against_itself: the two are one engine.
    """
    before_S, after_S = times[baseline].to_numpy(np.float64), times[candidate].to_numpy(np.float64)
    interval = percentile = p_value = error = smallest = alarms = None
    if len(times) >= SMALLEST_SAMPLE:
        p_value = stats.sign_flip_p(before_S, after_S, rng)
        each = repeated or {baseline: before_S, candidate: after_S}
        found = stats.bootstrap_saved_share(each[baseline], each[candidate], counts_RS, rng)
        interval, percentile, error = found.studentised(), found.percentile(), found.error
        smallest = power.smallest_effect(error, len(times))
        alarms = power.aa_false_alarm_rate(before_S, after_S, rng) if against_itself else None
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
        error=error,
        smallest_effect=smallest,
        false_alarm_rate=alarms,
    )


def compare_all(
    times: pd.DataFrame,
    medians: Mapping[str, Medians],
    baseline: str,
    counts_RS: Integers,
    *,
    seed: int,
    repeated: Mapping[str, Floats] | None = None,
    identities: Mapping[str, str] | None = None,
) -> tuple[Comparison, ...]:
    """Every engine against the baseline, ours first; then the other pairs, where the faster one is the candidate.

    Of a sweep with more than ``MOST_PAIRS`` such pairs only those with the baseline.

    Args:
        identities: engine → what makes it itself (``Run.identity``); two with the same are one engine twice.
    """
    engines = sorted((str(engine) for engine in times.columns if engine != baseline), key=lambda name: name != OURS)
    totals = times.sum()
    pairs = [(baseline, engine) for engine in engines]
    others = [] if len(engines) * (len(engines) - 1) / 2 > MOST_PAIRS else combinations(engines, 2)
    for one, other in others:
        pairs.append((one, other) if totals[other] <= totals[one] else (other, one))
    itself = identities or {}
    made = [
        compare(
            times, medians, before, after, counts_RS, np.random.default_rng(seed),
            repeated=repeated, against_itself=before in itself and itself[before] == itself.get(after),
        )
        for before, after in pairs
    ]  # fmt: skip
    return tuple(_together(made[: len(engines)]) + _together(made[len(engines) :]))


def _together(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """With the p-values of all their medians adjusted for one another."""
    family = [
        (position, name, pair)
        for position, c in enumerate(comparisons)
        for name, pair in {**c.ttft, "tpot": c.tpot}.items()
        if pair is not None and pair.ratios is not None
    ]
    if not family:
        return list(comparisons)
    replicates_RM = np.stack([pair.ratios for *_, pair in family if pair.ratios is not None], axis=1)
    p_M = stats.max_t(np.array([pair.ratio for *_, pair in family]), replicates_RM, null=1.0)
    found: list[dict[str, float]] = [{} for _ in comparisons]
    for (position, name, _), p in zip(family, p_M, strict=True):
        found[position][name] = float(p)
    return [replace(c, adjusted_p=p) for c, p in zip(comparisons, found, strict=True)]
