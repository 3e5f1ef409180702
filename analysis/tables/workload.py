"""Table 2 of the paper: what was replayed."""

from analysis.paper import Row
from analysis.summary import Summary
from analysis.tables import formulas as said
from analysis.tables.plain import NOT_PRINTED, marked
from analysis.tables.table import PAPER, Column, Line, Table, absent, count, number, words
from analysis.wording import KIND_WORDS
from analysis.workload import WorkloadSummary

FORMULAS = (
    "outputs: generated tokens; new tokens: prompt tokens beyond the previous turn's prompt and output, median over "
    "turns, all and by turn type; as replayed by the engine that got furthest",
)


def workload_table(summary: Summary) -> Table:
    """One row a workload."""
    workloads = [part.workload for part in summary.parts]
    kinds = [kind for kind in KIND_WORDS if any(kind in workload.turns_by_kind for workload in workloads)]
    paper = [_paper_line(row, kinds) for row in summary.reference.table_2] if summary.reference else []
    alone = workloads[0] if len(workloads) == 1 else None
    return Table(
        name="table_2",
        title="Table 2 · Workload" if alone else "Table 2 · Workloads",
        heads=(
            Column("workload", "workload"),
            Column("sessions", "sessions"),
            Column("turns", "turns"),
            Column("outputs", "output_tokens"),
            Column("new tokens", "new_tokens_median"),
            *(
                Column(
                    f"new tokens, {KIND_WORDS[kind]}" + (f" ({alone.turns_by_kind[kind]:,})" if alone else ""),
                    f"new_tokens_{kind}_median",
                )
                for kind in kinds
            ),
        ),
        lines=(*(_workload(workload, kinds) for workload in workloads), *paper),
        sources=("",) * len(workloads) + (PAPER,) * len(paper),
        formulas=(*FORMULAS, *((said.PAPER_ROWS,) if paper else ())),
    )


def _paper_line(row: Row, kinds: list[str]) -> Line:
    return (
        marked(f"{row['workload']}, {row['set']}"),
        *(count(row[name]) for name in ("sessions", "turns", "outputs")),
        count(row["new_tokens"]),
        *(absent(NOT_PRINTED) for _ in kinds),
    )


def _workload(workload: WorkloadSummary, kinds: list[str]) -> Line:
    return (
        words(workload.name),
        count(workload.sessions),
        count(workload.turns),
        count(workload.output_tokens),
        number(workload.new_tokens_median_all, lambda value: f"{value:,.0f}"),
        *(
            number(workload.new_tokens_median[kind], lambda value: f"{value:,.0f}")
            if kind in workload.new_tokens_median
            else absent("no such turn")
            for kind in kinds
        ),
    )
