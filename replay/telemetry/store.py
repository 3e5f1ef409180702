"""A run folder's telemetry: lines of JSON while it grows, so that a kill costs one line; Parquet at the run's end."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay.telemetry.sampler import FILE as LINES_FILE

PARQUET_FILE = "telemetry.parquet"
Rows = Sequence[Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Samples in the order they were taken; ``t_ns`` is on the records' clock."""

    rows: Rows = ()
    """A field that could not be read is missing."""
    absent: Mapping[str, str]
    """Source → why it gave nothing."""
    every_s: float | None


def read(folder: Path) -> Telemetry:
    """What was sampled into ``folder``, by this command and by earlier ones, finished or killed."""
    rows, head = _parquet(folder / PARQUET_FILE)
    lines, newer_head = _lines(folder / LINES_FILE)
    # A kill between the two steps of ``settle`` leaves samples in both files.
    known = {row["t_ns"] for row in rows}
    rows += [row for row in lines if row["t_ns"] not in known]
    head = newer_head or head
    return Telemetry(rows=rows, absent=head.get("absent", {}), every_s=head.get("every_s"))


def settle(folder: Path) -> Telemetry:
    """Turn the lines into Parquet; return all samples.

    Raises:
        OSError: the disk is full; the lines stay.
    """
    import pyarrow as pa
    from pyarrow import parquet

    found = read(folder)
    if found.rows:
        names = dict.fromkeys(name for row in found.rows for name in row)
        table = pa.table({name: [row.get(name) for row in found.rows] for name in names})
        head = json.dumps({"absent": found.absent, "every_s": found.every_s})
        temporary = folder / (PARQUET_FILE + ".new")
        try:
            parquet.write_table(table.replace_schema_metadata({"telemetry": head}), temporary)
            temporary.replace(folder / PARQUET_FILE)
        finally:
            temporary.unlink(missing_ok=True)
        (folder / LINES_FILE).unlink(missing_ok=True)
    return found


def _parquet(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    if not path.is_file():
        return [], {}
    from pyarrow import parquet

    table = parquet.read_table(path)
    rows = [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]
    return rows, json.loads((table.schema.metadata or {}).get(b"telemetry", b"{}"))


def _lines(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    head: dict[str, Any] = {}
    if path.is_file():
        for line in path.read_bytes().splitlines():
            try:
                row = json.loads(line)
            except json.JSONDecodeError:  # a kill cut it short
                continue
            if "t_ns" in row:
                rows.append(row)
            else:
                head = row
    return rows, head
