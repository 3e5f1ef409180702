"""Every table of the report, in its order."""

from collections.abc import Iterator
from dataclasses import replace

from analysis import wording
from analysis.summary import Summary
from analysis.tables.ablation import ablation_table
from analysis.tables.engines import engine_table, phase_table
from analysis.tables.iso_vram import iso_vram_table
from analysis.tables.load import pressure_table
from analysis.tables.main_results import main_table
from analysis.tables.other_model import other_model_tables
from analysis.tables.pairs import comparison_table
from analysis.tables.rates import rate_table
from analysis.tables.served_together import turn_wall_table
from analysis.tables.sliced import sliced_tables
from analysis.tables.table import Table
from analysis.tables.tuning import tuning_table
from analysis.tables.turn_types import turn_type_table
from analysis.tables.workload import workload_table


def tables(summary: Summary) -> list[Table]:
    """Tables that these records can fill; one that holds a single experiment comes once for each."""
    made = [
        *_each(summary, "engines"),
        main_table(summary),
        *_each(summary, "pairs"),
        turn_type_table(summary),
        *other_model_tables(summary),
        *_each(summary, "rest"),
        workload_table(summary),
    ]
    return [table for table in made if table.lines]


def _each(summary: Summary, group: str) -> Iterator[Table]:
    for part in summary.parts:
        for table in _group(part, summary, group):
            yield _of(part, table) if summary.panels else table


def _group(part: Summary, summary: Summary, group: str) -> list[Table]:
    if group == "engines":
        return [engine_table(part), tuning_table(part)]
    if group == "pairs":
        return [comparison_table(part), phase_table(part)]
    return [
        *sliced_tables(part),
        rate_table(part),
        ablation_table(part, summary.reference),
        iso_vram_table(part),
        turn_wall_table(part),
        pressure_table(part),
    ]


def _of(part: Summary, table: Table) -> Table:
    experiment = wording.experiment(part)
    return replace(table, name=f"{table.name}_{wording.slug(experiment)}", title=f"{table.title}: {experiment}")
