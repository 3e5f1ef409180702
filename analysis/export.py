"""Numbers for programs: ``tables/*.csv`` and ``turns.parquet``. ``results.json`` is ``analysis/results.py``."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from analysis.frame import OK
from analysis.summary import Summary
from analysis.tables.catalogue import tables
from analysis.tables.table import Cell, Table

TABLES = "tables"
TURNS_FILE = "turns.parquet"
WHY = "why_absent"
SOURCE = "source"


def exports(summary: Summary) -> dict[str, bytes]:
    """Path below the folder → content. The same records give the same bytes."""
    made = {f"{TABLES}/{table.name}.csv": csv_of(table) for table in tables(summary)}
    return made | {TURNS_FILE: turns_parquet(summary)}


def outdated(folder: Path, written: Mapping[Path, bytes]) -> Iterator[Path]:
    """Tables of an earlier analysis that these records no longer fill."""
    for path in sorted((folder / TABLES).glob("*.csv")):
        if path not in written:
            yield path


def csv_of(table: Table) -> bytes:
    """Numbers in full and without their unit, which is in the header; an interval as two columns more.

    An absent number is empty, and the last column says why: ``tpot_ms: no turn tells a TPOT; …``.
    """
    named = [(at, head.name) for at, head in enumerate(table.heads) if head.name]
    columns = [column for at, name in named for column in _columns(name, [line[at] for line in table.lines], at)]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*(name for name, _ in columns), *([SOURCE] if table.sources else []), WHY])
    for row in range(len(table.lines)):
        whys = [f"{name}: {why}" for at, name in named if (why := table.lines[row][at].why)]
        source = [table.source(row)] if table.sources else []
        writer.writerow([*(values[row] for _, values in columns), *source, "; ".join(whys)])
    return text.getvalue().encode()


def _columns(name: str, cells: Sequence[Cell], at: int) -> Iterator[tuple[str, list[str]]]:
    if at == 0:
        yield name, [cell.text for cell in cells]
        return
    ends = any(cell.low is not None for cell in cells)
    if not ends or any(cell.number is not None for cell in cells):
        yield name, [_number(cell.number) for cell in cells]
    if ends:
        yield f"{name}_low", [_number(cell.low) for cell in cells]
        yield f"{name}_high", [_number(cell.high) for cell in cells]


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return str(int(value)) if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))


def turns_parquet(summary: Summary) -> bytes:
    """Every turn of each session's last attempt, failed ones too; times in seconds, null is "not measured".

    Columns: ``engine`` (key of the run), ``label``, ``workload``, ``model``, what was observed, every metric, and
    ``counted``: whether the turn is in the statistics of the report.
    """
    frames = [_turns(summary, part_key, part) for part_key, part in _runs(summary)]
    frames = [frame for frame in frames if len(frame)] or frames[:1]
    everything = pd.concat(frames, ignore_index=True)
    buffer = io.BytesIO()
    everything.to_parquet(buffer, engine="pyarrow", index=False, compression="zstd")
    return buffer.getvalue()


def _runs(summary: Summary) -> Iterator[tuple[str, Summary]]:
    """Every run's key, and the part that it is compared in."""
    for part in summary.parts:
        for run in part.runs:
            yield run.key, part


def _turns(summary: Summary, key: str, part: Summary) -> pd.DataFrame:
    run = next(run for run in part.runs if run.key == key)
    whole = next(each.key for each in summary.runs if each.folders == run.folders)
    counted = set(part.turns.loc[part.turns["engine"] == key, "session_id"])
    about = {
        "engine": whole,
        "label": run.label,
        "workload": part.workload.name,
        "model": str(run.result["model"]["name"]),
    }
    turns = run.turns.drop(columns="engine").convert_dtypes()
    turns = turns.assign(counted=(run.turns["status"] == OK) & run.turns["session_id"].isin(counted))
    for at, (name, value) in enumerate(about.items()):
        turns.insert(at, name, value)
    return turns
