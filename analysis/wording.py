"""Numbers and findings in words: the same on the page, in Markdown and in the terminal."""

import math
import re
from collections.abc import Mapping

from analysis.checks import INVALID, Check
from analysis.compare import Comparison
from analysis.load import Load
from analysis.runs import COMPLETE
from analysis.stats import SMALLEST_SAMPLE, Interval, Median
from analysis.summary import Summary
from analysis.tuning import Tuning, tunings

ABSENT = "–"
MOST_SENTENCES = 10
"""More pairs than that are left to the table."""
KIND_WORDS = {"first": "first", "tool": "after tool", "user": "after user"}


def seconds(value: float | None) -> str:
    """``7,119.0 s``, ``1.26 s``, ``34.2 ms``: three digits or a tenth, whichever says more."""
    if value is None:
        return ABSENT
    if abs(value) < 1:
        return milliseconds(value)
    return f"{_signed(value, 1 if abs(value) >= 100 else 2)} s"


def milliseconds(value: float | None) -> str:
    if value is None:
        return ABSENT
    value *= 1e3
    return f"{_signed(value, 1 if abs(value) >= 10 else 2)} ms"


def tick(value: float) -> str:
    """A round time on an axis: ``50 ms``, ``2 s``."""
    return f"{value:g} s" if value >= 1 else f"{value * 1e3:g} ms"


def percent(value: float | None) -> str:
    return ABSENT if value is None else f"{_signed(100 * value, 1)} %"


def percent_interval(interval: Interval | None) -> str:
    """``40.1–42.3 %``; ``−1.0 to 1.8 %`` where a dash would read as a sign."""
    if interval is None:
        return ABSENT
    return f"{_span(_signed(100 * interval.low, 1), _signed(100 * interval.high, 1))} %"


def ratio(value: float, interval: Interval | None = None) -> str:
    text = f"{value:.2f}×"
    return text if interval is None else f"{text} ({interval.low:.2f}–{interval.high:.2f})"


def times(value: float) -> str:
    """A speed-up as it is said: ``1.7×``, ``1.02×`` near one, where a tenth would hide it."""
    return f"{value:.1f}×" if value >= 1.25 else f"{value:.2f}×"


def times_interval(low: float, high: float) -> str:
    """``1.68–1.72``, the ends of a factor; without an end where the resamples give none."""
    return f"{low:.2f}–{'∞' if math.isinf(high) else f'{high:.2f}'}"


def median(value: Median | None, unit: str = "s") -> str:
    """``41.2 ms (40.0–43.1)``, its interval where there is one."""
    if value is None:
        return ABSENT
    whole = milliseconds(value.value) if unit == "ms" else seconds(value.value)
    if value.interval is None:
        return whole
    in_seconds = whole.endswith(" s")
    scale = 1 if in_seconds else 1e3
    digits = len(whole.split()[0].partition(".")[2])
    return f"{whole} ({value.interval.low * scale:.{digits}f}–{value.interval.high * scale:.{digits}f})"


def load(names: Load) -> str:
    """``cpu 50 %``; ``cpu 50 % and memory 30 %`` where both are on."""
    return " and ".join(names) or "no load"


def share(part: int, whole: int) -> str:
    return f"{part:,}/{whole:,}" if whole else ABSENT


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _signed(value: float, digits: int) -> str:
    """With a real minus sign, and none before a zero."""
    text = f"{value:,.{digits}f}"
    return text.replace("-", "−") if text.strip("-0.,") else text.replace("-", "")


def _span(low: str, high: str) -> str:
    return f"{low} to {high}" if "−" in low + high else f"{low}–{high}"


# -- findings -------------------------------------------------------------------------------------------------------


def verdict(comparison: Comparison, baseline: str, candidate: str) -> str:
    """One sentence on two engines, named by their labels."""
    sessions = count(comparison.sessions, "session")
    won = f"won {comparison.won} of {comparison.sessions}"
    interval = comparison.interval
    if interval is None:
        return (
            f"{candidate} took {ratio(1 / comparison.speedup)} the time of {baseline} over {sessions} "
            f"(saved {percent(comparison.saved)}; {won}). Fewer than {SMALLEST_SAMPLE} sessions: "
            "points only, no interval and no verdict."
        )
    level = f"{100 * interval.level:.0f} % interval"
    if comparison.against_itself:
        return (
            f"A/A, one engine twice: {candidate} saved {percent(comparison.saved)} of {baseline} over the {sessions} "
            f"({level} {percent_interval(interval)}); labels swapped at random, "
            f"{percent(comparison.false_alarm_rate)} of the intervals claim a difference; smallest detectable effect "
            f"{percent(comparison.smallest_effect)} (power 90 %)."
        )
    if not comparison.decided:
        return (
            f"No difference shown between {candidate} and {baseline} over the {sessions}: "
            f"saved {percent(comparison.saved)} ({level} {percent_interval(interval)}); {candidate} {won}."
        )
    if comparison.saved > 0:
        return (
            f"{candidate} finishes the {sessions} {times(comparison.speedup)} sooner than {baseline}; "
            f"{level} {times_interval(_speedup(interval.low), _speedup(interval.high))}; {won}."
        )
    return (
        f"{candidate} takes {times(1 / comparison.speedup)} as long as {baseline} over the {sessions}; "
        f"{level} {times_interval(1 - interval.high, 1 - interval.low)}; {won}."
    )


def _speedup(saved: float) -> float:
    return 1 / (1 - saved) if saved < 1 else math.inf


def verdicts(summary: Summary) -> list[str]:
    """The sentence a report opens with, then the other pairs."""
    if summary.panels:
        return [f"{experiment(part)}: {said}" for part in summary.panels for said in verdicts(part)]
    return [*map(chosen, tunings(summary)), *_pairs(summary)]


def chosen(tuning: Tuning) -> str:
    """What a sweep was to choose, and what it chose."""
    if not tuning.guarded:
        return f"Nothing chosen for {tuning.engine}: {tuning.setting} was tried on other than development sessions."
    if not tuning.ranked:
        return f"Nothing chosen for {tuning.engine}: no value of {tuning.setting} finished the same sessions."
    (best_s, best), *others = tuning.ranked
    where = count(best.engine.sessions, f"{best.split} session")
    named = best.value if "," in tuning.setting else f"{tuning.setting}={best.value}"  # several name themselves
    said = f"Chosen for {tuning.engine} on {where}: {named}, {seconds(best_s)}"
    if not others:
        return f"{said}; no other value finished."
    doubt = ", which these sessions do not tell apart" if tuning.told_apart is False else ""
    return f"{said}; next {others[0][1].value}, {seconds(others[0][0])}{doubt}."


def _pairs(summary: Summary) -> list[str]:
    if summary.pairing.differences:
        return ["Not compared: the runs are not alike. " + "; ".join(summary.pairing.differences) + "."]
    if summary.comparisons:
        against = [c for c in summary.comparisons if c.baseline == summary.baseline]
        many = len(summary.comparisons) > MOST_SENTENCES
        said = sorted(against, key=lambda c: -c.saved) if many else summary.comparisons  # the fastest is the headline
        return [verdict(c, summary.label(c.baseline), summary.label(c.candidate)) for c in said]
    if not summary.pairing.engines:
        return ["No verdict: no engine finished a session."]
    if len(summary.pairing.engines) > 1:
        return ["Not compared: no session was finished by every engine."]
    only = next(engine for engine in summary.engines if engine.key == summary.pairing.engines[0])
    return [
        f"One engine, nothing to compare: {only.label} takes {seconds(only.total_request_s)} "
        f"for {count(only.sessions, 'session')}."
    ]


def experiment(summary: Summary) -> str:
    """Workload and model: what tells an experiment from others beside it."""
    model = str(summary.runs[0].result["model"]["name"])
    return f"{summary.workload.name}, {model}"


def slug(text: str) -> str:
    """In the name of a file or a column: ``swe, qwen3`` → ``swe_qwen3``."""
    return re.sub(r"\W+", "_", text.lower()).strip("_")


def checked(summary: Summary, check: Check) -> str:
    """Whose check it is: ``Ostinato``, ``Ostinato, repeat 1``."""
    return summary.label(check.engine) + ("" if check.repeat is None else f", repeat {check.repeat}")


def warnings(summary: Summary) -> list[str]:
    """What a reader must know before any number; empty when the runs are complete, alike and valid."""
    said = []
    if summary.others:
        lost = sum(other.status != COMPLETE for other in summary.others)
        said.append(
            f"{count(len(summary.others), 'run')} of this sweep are listed in results.json (`others`) and not shown: "
            f"slower than these, {lost} of them not complete."
        )
    for run in summary.interrupted:
        said.append(f"{run.label}: the run is {run.status}" + (f": {run.error}" if run.error else "") + ".")
    for run in summary.runs:
        if run.status == COMPLETE and run.key not in summary.pairing.engines:
            said.append(f"{run.label}: no session was finished, so it is not compared.")
    for check in summary.failed_checks:
        verdict = "not valid" if check.severity == INVALID else "warning"
        wanted = f" (wanted: {check.threshold})" if check.threshold else ""
        advice = f"; {check.advice}" if check.advice else ""
        said.append(f"{checked(summary, check)}: {verdict}: {check.name}: {check.value}{wanted}{advice}.")
    for engine in summary.engines:
        if engine.earlier_attempts:
            tried = count(engine.earlier_attempts, "turn")
            said.append(f"{engine.label}: {tried} of attempts that failed and were repeated are not counted.")
    if summary.pairing.excluded and not summary.pairing.differences:
        said.append(
            f"{count(len(summary.pairing.excluded), 'session')} left out of the comparison, "
            "not finished by every engine: " + _listed(summary.pairing.excluded) + "."
        )
    return said


def _listed(excluded: Mapping[str, str], *, most: int = 5) -> str:
    pairs = [f"{session} ({why})" for session, why in excluded.items()]
    rest = len(pairs) - most
    return ", ".join(pairs[:most]) + (f" and {rest} more" if rest > 0 else "")


def title(summary: Summary) -> str:
    """``INTERRUPTED · NOT VALID · tau2: llama.cpp, Ostinato``."""
    return " · ".join([*flags(summary), name(summary)])


def name(summary: Summary) -> str:
    """``tau2: llama.cpp, Ostinato``."""
    workloads = dict.fromkeys(part.workload.name for part in summary.parts)
    labels = dict.fromkeys(run.label for part in summary.parts for run in part.runs)
    return f"{', '.join(workloads)}: {', '.join(labels)}"


def flags(summary: Summary) -> list[str]:
    """What stands before everything else when the runs are not complete, alike and valid; else empty."""
    return [
        *(["INTERRUPTED"] if any(run.status == "interrupted" for run in summary.runs) else []),
        *(["FAILED"] if any(run.status == "failed" for run in summary.runs) else []),
        *(["NOT VALID"] if summary.broken_checks or summary.pairing.differences else []),
    ]
