"""The gate: whether a candidate got slower than its base by more than a margin, and how sure that is.

A change of a metric, worse positive, with its 95 % interval over sessions, is

* a **regression** when the interval lies entirely on the worse side **and** the estimate is beyond the margin;
* a **pass** when the interval lies entirely within the margin or on the better side;
* **inconclusive** else, with the number of sessions that would decide.

The two conditions of a regression are different questions, so that neither noise (the estimate alone) nor a certain
but harmless change (the interval alone) raises it. Asking that the interval lie entirely beyond the *margin* would be
stricter, and would find a 5 % slow-down at a 3 % margin in 47 % of the runs of 13 sessions whose times vary by 3 %,
not in 93 % (``benchmarks/gate_power.py`` prints both rules); where it holds, the verdict says so.

Regressions are corrected for the number of rows (Holm 1979): any false one among all is as unlikely as for one row. A
pass needs every row to pass, which needs no correction (Berger 1982).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from analysis import power, stats
from analysis.change import SEED, Change, measure
from analysis.compare import TURN_KINDS, AnalysisError
from analysis.metric import Direction, Metric, Over
from analysis.side import Side, common_sessions, differences
from analysis.stats import LEVEL, SMALLEST_SAMPLE
from analysis.wording import KIND_WORDS

MARGIN = 0.03
DEFAULT_METRICS = ("stream_s", "ttft_s", "tpot_s")


class Verdict(StrEnum):
    PASS = "pass"  # noqa: S105
    REGRESSION = "regression"
    INCONCLUSIVE = "inconclusive"
    NONE = "no verdict"


EXIT = {Verdict.PASS: 0, Verdict.REGRESSION: 1, Verdict.INCONCLUSIVE: 3, Verdict.NONE: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    change: Change
    label: str
    verdict: Verdict
    reason: str
    adjusted_p: float | None = None
    """Holm-corrected; one-sided."""
    more_sessions: int | None = None
    """How many more would decide, as far as these tell; None where the row is decided or none would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    base: Side
    candidate: Side
    margin: float
    sessions: tuple[str, ...]
    rows: tuple[Row, ...]
    verdict: Verdict
    reasons: tuple[str, ...]
    """Why the verdict is not simply that of the rows."""
    differences: tuple[str, ...]
    """Fields of the comparability key that differ, with their values; any: points only, no verdict."""
    smallest_effect: float | None
    """Slow-down of the first row that so many sessions call a regression with 90 % probability."""

    @property
    def more_sessions(self) -> int | None:
        """What the row that needs most needs."""
        needed = [row.more_sessions for row in self.rows if row.more_sessions is not None]
        return max(needed, default=None)


def chosen_rows(wanted: Sequence[str], metrics: Mapping[str, Metric]) -> list[tuple[Metric, str | None]]:
    """``["ttft_s", "tpot_s:tool"]`` → metrics with turn kinds; the default ones for an empty list.

    Raises:
        AnalysisError: no such metric or kind, or one that has no better and worse.
    """
    rows: list[tuple[Metric, str | None]] = []
    for text in wanted or DEFAULT_METRICS:
        name, colon, kind = text.partition(":")
        metric = metrics.get(name)
        if metric is None or metric.direction is Direction.NONE:
            judged = [known.name for known in metrics.values() if known.direction is not Direction.NONE]
            raise AnalysisError(f"--metric {text}: no metric that a gate can judge; name one of {', '.join(judged)}")
        if colon and kind not in (*TURN_KINDS, "all"):
            raise AnalysisError(f"--metric {text}: turn kinds are {', '.join(TURN_KINDS)} and all")
        kinds: Sequence[str | None] = TURN_KINDS if metric.by_kind else (None,)
        rows += [(metric, None if kind == "all" else k) for k in ([kind] if colon else kinds)]
    return list(dict.fromkeys(rows))


def decide(
    base: Side,
    candidate: Side,
    rows: Sequence[tuple[Metric, str | None]],
    *,
    margin: float = MARGIN,
    asked: bool = False,
    across_machines: bool = False,
    resamples: int = stats.RESAMPLES,
) -> Decision:
    """Compare two sides and judge every row.

    Args:
        rows: from ``chosen_rows``; both sides have their metrics.
        margin: share of the base's value by which a metric may get worse.
        asked: whether the user named the rows; then one that can't be judged keeps the gate from passing.

    Raises:
        AnalysisError: the sides can't be compared.
    """
    unlike = differences(base, candidate, across_machines=across_machines)
    sessions = common_sessions(base, candidate)
    enough = len(sessions) >= SMALLEST_SAMPLE and not unlike
    counts_RS = stats.resample(len(sessions), np.random.default_rng(SEED), resamples=resamples) if enough else None
    changes = [measure(base.turns, candidate.turns, sessions, metric, kind, counts_RS) for metric, kind in rows]
    labels = [_label(metric, kind) for metric, kind in rows]
    judged = judge(changes, labels, margin=margin, comparable=not unlike)
    verdict, reasons = _overall(judged, base, candidate, asked=asked, comparable=not unlike)
    return Decision(
        base=base,
        candidate=candidate,
        margin=margin,
        sessions=sessions,
        rows=tuple(judged),
        verdict=verdict,
        reasons=tuple(reasons),
        differences=unlike,
        smallest_effect=_smallest_effect(changes, margin),
    )


def _smallest_effect(changes: Sequence[Change], margin: float) -> float | None:
    """Of the first row, at the level that Holm leaves it when no other row got worse."""
    first, tested = changes[0], sum(change.p is not None for change in changes)
    if first.error is None:
        return None
    return power.smallest_effect(first.error, first.sessions, margin=margin, level=1 - (1 - LEVEL) / tested)


def _label(metric: Metric, kind: str | None) -> str:
    of_kind = "" if kind is None else f" {KIND_WORDS[kind]}"
    return metric.label + of_kind + (", median" if metric.over is Over.MEDIAN else "")


def judge(
    changes: Sequence[Change], labels: Sequence[str], *, margin: float = MARGIN, comparable: bool = True
) -> list[Row]:
    """The verdict on each change, corrected for all of them."""
    tested = [position for position, change in enumerate(changes) if change.p is not None]
    p_M = stats.holm(np.array([changes[position].p for position in tested], np.float64))
    adjusted = dict(zip(tested, p_M.tolist(), strict=True))
    return [
        _row(change, label, adjusted.get(position), margin) if comparable else _no_verdict(change, label)
        for position, (change, label) in enumerate(zip(changes, labels, strict=True))
    ]


def _no_verdict(change: Change, label: str) -> Row:
    reason = "" if change.change is not None else change.reason
    return Row(change=change, label=label, verdict=Verdict.NONE, reason=reason)


def _row(change: Change, label: str, adjusted_p: float | None, margin: float) -> Row:
    interval, worse = change.interval, change.change
    if worse is None or interval is None or change.p is None or adjusted_p is None:
        more = max(SMALLEST_SAMPLE - change.sessions, 0) or None
        return Row(change=change, label=label, verdict=Verdict.NONE, reason=change.reason, more_sessions=more)

    def row(verdict: Verdict, reason: str, more: int | None = None) -> Row:
        return Row(
            change=change, label=label, verdict=verdict, reason=reason, adjusted_p=adjusted_p, more_sessions=more
        )

    limit = f"{100 * margin:g} %"
    slower = interval.low > 0 and adjusted_p <= (1 - LEVEL) / 2
    if slower and worse > margin:
        whole = interval.low > margin
        how = f"even the interval lies beyond {limit}" if whole else f"surely worse, the estimate beyond {limit}"
        return row(Verdict.REGRESSION, how)
    if max(worse, interval.high) <= margin:
        return row(Verdict.PASS, f"within {limit}" if interval.high > 0 else "better")
    if worse > margin:
        corrected = power.widening(adjusted_p / change.p)
        half, distance, doubt = corrected * (worse - interval.low), worse, "may be noise"
    else:
        half, distance, doubt = interval.high - worse, margin - worse, f"may be beyond {limit}"
    needed = power.sessions_needed(half, distance, change.sessions)
    return row(Verdict.INCONCLUSIVE, doubt, None if needed is None else max(needed - change.sessions, 1))


def _overall(
    rows: Sequence[Row], base: Side, candidate: Side, *, asked: bool, comparable: bool
) -> tuple[Verdict, list[str]]:
    if not comparable:
        return Verdict.NONE, ["the sides are not alike"]
    reasons = [f"base: {concern}" for concern in base.concerns]
    reasons += [f"candidate: {concern}" for concern in candidate.concerns]
    lost = [session for session in base.recorded if session not in candidate.recorded]
    if lost:
        why = candidate.unfinished.get(lost[0], "not replayed")
        reasons.append(f"the candidate lacks {len(lost)} of the base's sessions: {lost[0]} ({why})")
    verdicts = {row.verdict for row in rows}
    if Verdict.REGRESSION in verdicts:
        return Verdict.REGRESSION, reasons
    unjudged = rows[0].verdict is Verdict.NONE or (asked and Verdict.NONE in verdicts)
    if reasons or unjudged or Verdict.INCONCLUSIVE in verdicts:
        return Verdict.INCONCLUSIVE, reasons
    return Verdict.PASS, reasons
