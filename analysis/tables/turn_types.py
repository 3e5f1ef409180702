"""Table 7 of the paper: median TTFT by turn type, of every experiment."""

from collections.abc import Sequence

from analysis import wording
from analysis.compare import TURN_KINDS
from analysis.paper import Reference, paper_workload
from analysis.subject import in_paper_order, subject
from analysis.summary import Summary
from analysis.tables import formulas as said
from analysis.tables.plain import marked, plain
from analysis.tables.table import PAPER, Cell, Column, Line, Table, absent, number, words
from analysis.wording import KIND_WORDS

Group = tuple[Summary, str]
"""An experiment and a turn type: a column."""


def turn_type_table(summary: Summary) -> Table:
    groups = [
        (part, kind)
        for part in summary.parts
        for kind in TURN_KINDS
        if any(kind in engine.medians.ttft for engine in part.engines)
    ]
    keys = _keys(summary)
    lines = [(words(_label(summary, key)), *(_cell(part, kind, key) for part, kind in groups)) for key in keys]
    paper = _paper_lines(summary.reference, groups) if summary.reference else []
    several = len(summary.parts) > 1
    return Table(
        name="table_7",
        title="Table 7 · TTFT by turn type",
        heads=(Column("engine", "engine"), *(_head(part, kind, several=several) for part, kind in groups)),
        lines=(*lines, *(line for _, line in paper)) if groups else (),
        engines=(*keys, *(engine for engine, _ in paper)) if groups else (),
        sources=("",) * len(keys) + (PAPER,) * len(paper),
        formulas=("medians in seconds; turns of each type in parentheses", said.TTFT, said.MEDIANS)
        + ((said.PAPER_ROWS,) if paper else ()),
    )


def _keys(summary: Summary) -> list[str]:
    """The engines of all experiments that finished something, ours last."""
    keys, last = [], []
    for part in summary.parts:
        ours = subject(part)
        keys += [
            engine.key for engine in in_paper_order(part, last=ours.key if ours else None) if engine.medians.ttft
        ]
        last += [ours.key] if ours else []
    return list(dict.fromkeys([*(key for key in keys if key not in last), *last]))


def _label(summary: Summary, key: str) -> str:
    return next(part.label(key) for part in summary.parts if any(run.key == key for run in part.runs))


def _head(part: Summary, kind: str, *, several: bool) -> Column:
    counts = {engine.medians.ttft[kind].turns for engine in part.engines if kind in engine.medians.ttft}
    turns = f" ({counts.pop():,})" if len(counts) == 1 else ""
    experiment = wording.experiment(part)
    before, prefix = (f"{experiment}: ", f"{wording.slug(experiment)}_") if several else ("", "")
    return Column(f"{before}{KIND_WORDS[kind]}{turns}", f"{prefix}ttft_{kind}_s")


def _cell(part: Summary, kind: str, key: str) -> Cell:
    found = next((engine.medians.ttft.get(kind) for engine in part.engines if engine.key == key), None)
    return number(
        found.value if found else None,
        plain,
        why="the engine has no such turn here",
        interval=found.interval if found else None,
    )


def _paper_lines(paper: Reference, groups: Sequence[Group]) -> list[tuple[str, Line]]:
    made = []
    for row in paper.table_7:
        known = {(each["workload"], each["kind"]): each for each in row["ttft_s"]}
        found = [known.get((paper_workload(part.workload.name), kind)) for part, kind in groups]
        if any(found):
            cells = [
                Cell(text=f"{each['median']:.2f} ({each['turns']:,})", number=each["median"])
                if each
                else absent("the paper has no such column")
                for each in found
            ]
            made.append((row["engine"], (marked(paper.labels[row["engine"]]), *cells)))
    return made
