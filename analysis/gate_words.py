"""A gate's decision in words: lines for a terminal, Markdown for a pull request."""

from collections.abc import Sequence

from analysis import wording
from analysis.gate import Decision, Row, Verdict
from analysis.metric import Metric
from analysis.stats import LEVEL

INTERVAL = f"{100 * LEVEL:.0f} % interval"
COLUMNS = ("metric", "base", "candidate", "change", INTERVAL, "p", "sessions", "verdict")
_MARKS = {Verdict.PASS: "✅", Verdict.REGRESSION: "❌", Verdict.INCONCLUSIVE: "❔", Verdict.NONE: "–"}


def signed_percent(value: float | None) -> str:
    """``+5.2 %``: slower by that much."""
    text = wording.percent(value)
    return f"+{text}" if value is not None and value > 0 and text.strip("0., %") else text


def cells(row: Row, metric: Metric) -> tuple[str, ...]:
    """Of one line of the table, as ``COLUMNS``."""
    change = row.change
    interval = wording.ABSENT
    if change.interval is not None:
        interval = f"{signed_percent(change.interval.low)} to {signed_percent(change.interval.high)}"
    return (
        row.label,
        amount(change.base, metric),
        amount(change.candidate, metric),
        signed_percent(change.change),
        interval,
        wording.ABSENT if row.adjusted_p is None else f"{row.adjusted_p:.2g}",
        f"{change.sessions:,}",
        verdict(row),
    )


def amount(value: float | None, metric: Metric) -> str:
    if value is None:
        return wording.ABSENT
    return wording.seconds(value) if metric.unit == "s" else f"{value:,.4g} {metric.unit}".rstrip()


def verdict(row: Row) -> str:
    """``inconclusive: may be noise; 4 more sessions would decide``."""
    said = str(row.verdict) + (f": {row.reason}" if row.reason else "")
    if row.more_sessions is not None and row.verdict is Verdict.NONE:
        return f"{said}; {wording.count(row.more_sessions, 'more session')} with such turns would give one"
    if row.more_sessions is not None:
        return f"{said}; {wording.count(row.more_sessions, 'more session')} would decide"
    return said + ("; no number of sessions would decide" if row.verdict is Verdict.INCONCLUSIVE else "")


def headline(decision: Decision) -> str:
    """The verdict in one sentence."""
    base, candidate = decision.base.label, decision.candidate.label
    about = f"{candidate} against {base}, {wording.count(len(decision.sessions), 'session')}"
    limit = f"margin {100 * decision.margin:g} %"
    if decision.verdict is Verdict.NONE:
        return f"no verdict: {about}, on unlike machines: {'; '.join(decision.differences)}"
    if decision.verdict is Verdict.PASS:
        return f"pass: {about}: nothing got worse by more than the {limit}"
    if decision.verdict is Verdict.REGRESSION:
        worse = [row for row in decision.rows if row.verdict is Verdict.REGRESSION]
        said = ", ".join(f"{row.label} {signed_percent(row.change.change)}" for row in worse)
        return f"regression: {about}: {said} ({limit})"
    more = decision.more_sessions
    if decision.reasons:
        return f"inconclusive: {about}: {'; '.join(decision.reasons)}"
    if more is None:
        return f"inconclusive: {about}: a change as large as the {limit} can't be told from it"
    return f"inconclusive: {about} ({limit}): {wording.count(more, 'more session')} like these would decide"


def undecided(decision: Decision) -> list[str]:
    """Why a row is no pass, one line each."""
    if decision.differences:
        return []
    return [f"{row.label}: {verdict(row)}" for row in decision.rows if row.verdict is not Verdict.PASS]


def notes(decision: Decision) -> list[str]:
    """What else to know: what went wrong, and what so many sessions can see."""
    said = [f"note: {reason}" for reason in decision.reasons if decision.verdict is Verdict.REGRESSION]
    if decision.smallest_effect is not None:
        said.append(
            f"{decision.rows[0].label}: with these sessions a slow-down of "
            f"{wording.percent(decision.smallest_effect)} is called a regression in 90 % of runs"
        )
    return said


FORMULAS = (
    "change: candidate / base − 1, worse positive; total request time: ratio of the sums over paired sessions "
    "(bootstrap-t interval), median: ratio of the medians over the turns that both sides have (percentile interval, "
    "sessions resampled)",
    "regression: the whole interval lies on the worse side and the estimate is beyond the margin (the whole interval "
    "need not be); pass: the whole interval lies within the margin or on the better side; else inconclusive",
    "p: one-sided, that it did not get worse, Holm-corrected for the rows of this table",
)


def markdown(decision: Decision, metrics: Sequence[Metric]) -> str:
    """For a pull request or a step summary."""
    rules = [":--", *["--:"] * (len(COLUMNS) - 2), ":--"]
    rows = [cells(row, metric) for row, metric in zip(decision.rows, metrics, strict=True)]
    rows = [(*row[:-1], f"{_MARKS[d.verdict]} {row[-1]}") for row, d in zip(rows, decision.rows, strict=True)]
    lines = ["| " + " | ".join(escaped(cell) for cell in row) + " |" for row in (COLUMNS, *rows)]
    lines.insert(1, "| " + " | ".join(rules) + " |")
    told = "\n".join(f"- {escaped(formula)}" for formula in (*notes(decision), *FORMULAS))
    head = f"**{_MARKS[decision.verdict]} {escaped(headline(decision))}**"
    return f"{head}\n\n" + "\n".join(lines) + f"\n\n<details><summary>Notes</summary>\n\n{told}\n\n</details>\n"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, in one line of a table."""
    for character in "\\|`*_<>[]":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())
