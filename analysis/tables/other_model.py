"""Table 4 of the paper: one baseline against ours on another model, by turn type."""

from dataclasses import replace

from analysis import wording
from analysis.compare import TURN_KINDS
from analysis.paper import Row
from analysis.stats import Median, MedianPair
from analysis.subject import against, subject
from analysis.summary import EngineSummary, Summary
from analysis.tables import formulas as said
from analysis.tables.plain import marked, plain, time_s
from analysis.tables.table import PAPER, Cell, Column, Line, Table, absent, count, number, percent, words
from analysis.wording import KIND_WORDS


def other_model_tables(summary: Summary) -> list[Table]:
    """One a model after the first, and of the only model where just two engines were compared."""
    models = list(dict.fromkeys(str(part.runs[0].result["model"]["hash"]) for part in summary.parts))
    made: list[Table] = []
    for number_, part in enumerate(summary.parts):
        other = str(part.runs[0].result["model"]["hash"]) != models[0]
        if other or (len(models) == 1 and len(part.pairing.engines) == 2):
            table = _table(part, summary.reference.table_4 if summary.reference else None)
            if table:
                made.append(replace(table, name=f"{table.name}_{number_}") if made else table)
    return made


def _table(part: Summary, paper: Row | None) -> Table | None:
    ours = subject(part)
    others = [engine for engine in part.engines if ours and engine.key != ours.key and engine.total_request_s]
    others = [engine for engine in others if engine.key in part.pairing.engines]
    if ours is None or not others:
        return None
    other = min(others, key=lambda engine: engine.total_request_s or 0.0)
    lines = [*_kinds(part, other, ours), _total(part, other, ours)]
    extra = _paper_lines(paper) if paper else []
    return Table(
        name="table_4",
        title=f"Table 4 · {other.label} → {ours.label} by turn type, {wording.experiment(part)}",
        heads=(
            Column("turn type", "turn_type"),
            Column("turns", "turns"),
            Column(f"{other.label} (s)", "baseline_s"),
            Column(f"{ours.label} (s)", "candidate_s"),
            Column("change", "change_percent"),
        ),
        lines=(*lines, *extra),
        sources=("",) * len(lines) + (PAPER,) * len(extra),
        formulas=(
            "TTFT by turn type: medians; change = candidate / baseline − 1, of the medians or of the totals",
            said.TTFT,
            said.MEDIANS,
            *((said.PAPER_ROWS,) if extra else ()),
        ),
    )


def _kinds(part: Summary, other: EngineSummary, ours: EngineSummary) -> list[Line]:
    made: list[Line] = []
    pairs = {(c.baseline, c.candidate): c.ttft for c in part.comparisons}.get((other.key, ours.key), {})
    for kind in TURN_KINDS:
        before, after = other.medians.ttft.get(kind), ours.medians.ttft.get(kind)
        if before and after:
            pair: MedianPair | None = pairs.get(kind)
            made.append(
                (
                    words(f"TTFT, {KIND_WORDS[kind]}"),
                    count(before.turns),
                    _median(before),
                    _median(after),
                    _change(after.value / before.value - 1, pair),
                )
            )
    return made


def _median(median: Median) -> Cell:
    return number(median.value, plain, interval=median.interval)


def _change(change: float, pair: MedianPair | None) -> Cell:
    interval = pair.ratio_interval if pair else None
    cell = percent(change)
    if interval is None:
        return cell
    return Cell(text=cell.text, number=cell.number, low=100 * (interval.low - 1), high=100 * (interval.high - 1))


def _total(part: Summary, other: EngineSummary, ours: EngineSummary) -> Line:
    found = against(part, other.key, ours.key)
    turns = len(part.turns[part.turns["engine"] == ours.key])
    return (
        words("total request time"),
        count(turns),
        time_s(other.total_request_s),
        time_s(ours.total_request_s),
        percent(-found.saved if found else None),
    )


def _paper_lines(paper: Row) -> list[Line]:
    lines: list[Line] = []
    model = f"{paper['baseline']} → {paper['candidate']}, {paper['model']}"
    for row in paper["ttft"]:
        change = 100 * (row["candidate_s"] / row["baseline_s"] - 1)
        lines.append(
            (
                marked(f"TTFT, {KIND_WORDS[row['kind']]}: {model}"),
                count(row["turns"]),
                time_s(row["baseline_s"]),
                time_s(row["candidate_s"]),
                Cell(text=wording.percent(change / 100), number=change),
            )
        )
    total = paper["total_change"]
    why = "the paper does not print it"
    lines.append(
        (
            marked(f"total request time: {model}"),
            count(paper["turns"]),
            absent(why),
            absent(why),
            Cell(text=wording.percent(total / 100), number=total),
        )
    )
    return lines
