"""A summary for the terminal (counts, quantiles, histograms), and every turn's lengths as CSV."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from workloads.session import Session, WorkloadError
from workloads.summary import Distribution, Summary

SHARES = (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)
BAR_WIDTH = 40
BAR_PARTS = "▏▎▍▌▋▊▉█"
CSV_COLUMNS = (
    "session_id",
    "task_id",
    "turn",
    "kind",
    "new_tokens",
    "output_tokens",
    "context_tokens",
    "tool_wait_s",
)


def show(summary: Summary, console: Console, *, plots: bool = True) -> None:
    """Print the paper's table 2 (sessions, turns, outputs, median new tokens by kind of turn) and what stands behind
    its medians."""
    console.print(_table(("", "count"), _counts(summary)))
    if not plots:
        return
    heads = ("", "n", *(_share(share) for share in SHARES))
    console.print(_table(heads, map(_quantiles, summary.distributions)))
    for distribution in (summary.new, summary.output, summary.context):
        console.print(f"\n{distribution.name}")
        for line in histogram(distribution):
            console.print(line)


def histogram(distribution: Distribution) -> Iterator[str]:
    """Yield one line a bin; each bin is twice as wide as the one before."""
    top = distribution.values[-1]
    edges = [0.0, 1.0]
    while edges[-1] <= top:
        edges.append(edges[-1] * 2)
    counts = [sum(low <= one < high for one in distribution.values) for low, high in pairwise(edges)]
    first = next(at for at, count in enumerate(counts) if count)
    largest = max(counts)
    for (low, high), count in list(zip(pairwise(edges), counts, strict=True))[first:]:
        yield f"{low:>9,.0f} – {high - 1:<9,.0f} {_bar(count / largest)} {count:,}"


def write_csv(path: Path, sessions: Iterable[Session]) -> None:
    """Write one row a turn.

    Raises:
        WorkloadError: a place that can't be written to.
    """
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(CSV_COLUMNS)
            for session in sessions:
                context = 0
                for number, turn in enumerate(session.turns):
                    new, output = len(turn.delta_ids), len(turn.output_ids)
                    context += new + output
                    # The csv module writes None as an empty field.
                    names = (session.session_id, session.task_id)
                    rows.writerow((*names, number, turn.kind, new, output, context, turn.tool_wait_s))
    except OSError as error:
        raise WorkloadError(f"{path}: can't be written ({error.strerror}); name another place") from error


def _counts(summary: Summary) -> Iterator[tuple[str, str]]:
    yield "sessions", f"{summary.sessions:,}"
    yield "tasks", f"{summary.tasks:,}"
    if summary.repeated:
        yield "sessions with the content of another", f"{summary.repeated:,}"
    yield "turns", f"{sum(summary.turns.values()):,}"
    for kind, count in summary.turns.items():
        yield f"  {kind} turns", f"{count:,}"
    yield "output tokens", f"{summary.output_tokens:,}"
    yield "median output of a turn (tokens)", f"{summary.output.median:,.0f}"
    yield "median new tokens, all turns", f"{summary.new.median:,.0f}"
    for kind, new in summary.new_by_kind.items():
        yield f"median new tokens, {kind} turns", f"{new.median:,.0f}"
    yield "longest context (tokens)", f"{summary.context.values[-1]:,}"


def _quantiles(distribution: Distribution) -> tuple[str, ...]:
    digits = 1 if distribution.name.endswith("(s)") else 0
    values = (f"{distribution.quantile(share):,.{digits}f}" for share in SHARES)
    return (distribution.name, f"{len(distribution.values):,}", *values)


def _share(share: float) -> str:
    return {0.0: "least", 0.5: "median", 1.0: "most"}.get(share, f"{share:.0%}")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(*heads, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in table.columns:
        column.no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*row)
    return table


def _bar(share: float) -> str:
    """A bar of eighths of a character; what is there at all is seen."""
    parts = len(BAR_PARTS)
    eighths = max(round(share * BAR_WIDTH * parts), 1 if share else 0)
    full, rest = divmod(eighths, parts)
    return BAR_PARTS[-1] * full + (BAR_PARTS[rest - 1] if rest else "")
