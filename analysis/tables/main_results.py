"""Table 3 of the paper: total request time, what ours saves of it, TTFT and TPOT; experiments side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from analysis import wording
from analysis.paper import Reference, Row, paper_workload
from analysis.stats import SMALLEST_SAMPLE
from analysis.subject import Against, against, in_paper_order, subject
from analysis.summary import EngineSummary, Summary
from analysis.tables import formulas as said
from analysis.tables.plain import (
    marked,
    plain,
    reference,
    reference_interval,
    reference_percent,
    reference_share,
    time_s,
    tpot_ms,
)
from analysis.tables.table import PAPER, Cell, Column, Line, Table, absent, ends, number, percent, share, words

_LEFT_OUT = "the engine is not in this experiment"
_OF_OURS = "what the others are compared with"


def main_table(summary: Summary) -> Table:
    """No rows where no two engines were compared."""
    parts = [part for part in summary.parts if subject(part)]
    ours = _subjects(parts)
    rows = _rows(parts, ours)
    lines = [_line(key, parts, ours) for key in rows]
    labels = {key: next(part.label(key) for part in parts if _engine(part, key)) for key in rows}
    named = [(words(labels[key]), *cells) for key, cells in zip(rows, lines, strict=True)]
    paper = list(_reference_lines(summary.reference, parts)) if summary.reference else []
    best = _best(named)
    return Table(
        name="table_3",
        title="Table 3 · Main results",
        heads=(Column("engine", "engine"), *(head for part in parts for head in _heads(part, len(parts) > 1))),
        lines=(*best, *(line for _, line in paper)),
        engines=(*rows, *(key for key, _ in paper)),
        sources=("",) * len(best) + (PAPER,) * len(paper),
        formulas=(
            "saved = 1 − Σ of the last row's engine / Σ of the row's engine, over the total request times of the "
            "sessions: the share of the row's time that the last row's engine saves",
            said.BOOTSTRAP_T,
            "won: sessions that the last row's engine finishes sooner",
            "TTFT: median time to first token after a tool output; TPOT: median time per output token",
            *_about_reference(summary, bool(paper)),
        ),
    )


def _about_reference(summary: Summary, shown: bool) -> tuple[str, ...]:
    if summary.reference is None:
        return ()
    none_like = "no row of the paper: it has no workload of this name (its are SWE and τ²-bench sessions)"
    return (said.PAPER_ROWS,) if shown else (none_like,)


def _subjects(parts: Sequence[Summary]) -> list[EngineSummary]:
    return [found for part in parts if (found := subject(part))]


def _rows(parts: Sequence[Summary], ours: Sequence[EngineSummary]) -> list[str]:
    """Engines of all experiments, ours last."""
    keys = [
        engine.key
        for part, mine in zip(parts, ours, strict=True)
        for engine in in_paper_order(part, last=mine.key)
        if engine.key in part.pairing.engines
    ]
    last = [mine.key for mine in ours]
    return list(dict.fromkeys([*(key for key in keys if key not in last), *last]))


def _heads(part: Summary, several: bool) -> list[Column]:
    sessions = f"{len(part.pairing.sessions):,} sessions"
    before = f"{wording.experiment(part)} ({sessions}): " if several else ""
    prefix = f"{wording.slug(wording.experiment(part))}_" if several else ""
    return [
        Column(f"{before}time (s)", f"{prefix}total_request_s"),
        Column("saved", f"{prefix}saved_percent"),
        Column("95 % interval", f"{prefix}saved_interval_percent"),
        Column("won", f"{prefix}won_sessions"),
        Column("TTFT (s)", f"{prefix}ttft_tool_s"),
        Column("TPOT (ms)", f"{prefix}tpot_ms"),
    ]


def _engine(part: Summary, key: str) -> EngineSummary | None:
    return next((engine for engine in part.engines if engine.key == key), None)


def _line(key: str, parts: Sequence[Summary], ours: Sequence[EngineSummary]) -> list[Cell]:
    return [cell for part, mine in zip(parts, ours, strict=True) for cell in _cells(part, key, mine)]


def _cells(part: Summary, key: str, mine: EngineSummary) -> Line:
    engine = _engine(part, key)
    if engine is None or key not in part.pairing.engines:
        return (absent(_LEFT_OUT),) * 6
    found = against(part, key, mine.key)
    ttft, tpot = engine.medians.ttft.get("tool"), engine.medians.tpot
    why = _OF_OURS if key == mine.key else "not compared"
    return (
        time_s(engine.total_request_s),
        percent(found.saved if found else None, why=why),
        ends(found.interval if found else None, why=_why_no_interval(found) if found else why),
        share(found.won, found.sessions, why=why) if found else absent(why),
        number(
            ttft.value if ttft else None,
            plain,
            why="no turn after a tool output",
            interval=ttft.interval if ttft else None,
        ),
        number(
            tpot.value if tpot else None,
            lambda value: tpot_ms(1e3 * value),
            why="no turn tells a TPOT",
            scale=1e3,
            interval=tpot.interval if tpot else None,
        ),
    )


def _why_no_interval(found: Against) -> str:
    return said.FEW if found.sessions < SMALLEST_SAMPLE else "its lower end is beyond all numbers"


def _best(lines: Sequence[Line]) -> list[Line]:
    """With the lowest time, TTFT and TPOT of each experiment marked as such, where there are several."""
    marked_lines = [list(line) for line in lines]
    for column in range(1, len(lines[0]) if lines else 0):
        if (column - 1) % 6 in (0, 4, 5):
            known = [cell.number for line in lines if (cell := line[column]).number is not None]
            for line in marked_lines if len(known) > 1 else ():
                if line[column].number == min(known):
                    line[column] = replace(line[column], best=True)
    return [tuple(line) for line in marked_lines]


def _reference_lines(paper: Reference, parts: Sequence[Summary]) -> Iterator[tuple[str, Line]]:
    columns = [paper.of_table_3(paper_workload(part.workload.name)) for part in parts]
    for engine, label in paper.labels.items():
        if any(engine in rows for rows in columns):
            cells = [cell for rows in columns for cell in _reference_cells(rows.get(engine))]
            yield engine, (marked(label), *cells)


def _reference_cells(row: Row | None) -> Line:
    if row is None:
        return (absent("the paper has no such row"),) * 6
    return (
        reference(row, "time_s", "{:,.1f}"),
        reference_percent(row),
        reference_interval(row),
        reference_share(row),
        reference(row, "ttft_s", "{:.2f}"),
        reference(row, "tpot_ms", "{:.1f}"),
    )
