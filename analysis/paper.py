"""The paper's own numbers, for rows beside ours. They are shown and marked; no statistic reads them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

PACKAGED = Path(__file__).parent / "data" / "paper_reference.json"
NAME = "paper"
"""What ``--reference`` takes for the packaged file."""
VERSION = 1

Row = Mapping[str, Any]


class ReferenceFileError(Exception):
    """A reference that can't be read; the message says what one looks like."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Rows as the file has them; a field that the paper does not print is null."""

    source: str
    machine: str
    labels: Mapping[str, str]
    """Engine → as the paper calls it."""
    table_2: tuple[Row, ...]
    """``{workload, set, sessions, turns, outputs, new_tokens}``"""
    table_3: tuple[Row, ...]
    """``{workload, engine, time_s, saved, low, high, won, sessions, ttft_s, tpot_ms}``; shares in percent."""
    table_4: Row
    """``{workload, model, baseline, candidate, ttft, turns, total_change}``, ``ttft`` a list of ``{kind, turns,
    baseline_s, candidate_s}``"""
    table_7: tuple[Row, ...]
    """``{engine, ttft_s: [{workload, kind, turns, median}]}``"""
    table_8: tuple[Row, ...]
    """``{set, configuration, total_s, prefill_s, decode_s}``"""
    table_8_steps: tuple[Row, ...]
    """``{configuration, swe_ms, tau2_ms}``, of a decode step."""

    def of_table_3(self, workload: str | None) -> dict[str, Row]:
        """Engine → its row for one of the paper's workloads; empty where ours is none of them."""
        return {row["engine"]: row for row in self.table_3 if row["workload"] == workload}


def read_reference(wanted: str) -> Reference:
    """``paper`` for the packaged file, else a path to one of the same form.

    Raises:
        ReferenceFileError: no such file, or not of that form.
    """
    path = PACKAGED if wanted == NAME else Path(wanted)
    remedy = f"use --reference {NAME}, or a file of the form of {PACKAGED.name} in the package's data"
    try:
        found = orjson.loads(path.read_bytes())
    except OSError as error:
        raise ReferenceFileError(f"{path}: {error.strerror}; {remedy}") from error
    except orjson.JSONDecodeError as error:
        raise ReferenceFileError(f"{path}: not JSON ({error}); {remedy}") from error
    fields = Reference.__dataclass_fields__
    if not isinstance(found, dict) or found.get("version") != VERSION or not fields.keys() <= found.keys():
        raise ReferenceFileError(f"{path}: no reference of version {VERSION}; {remedy}")
    return Reference(**{name: _frozen(found[name]) for name in fields})


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def paper_workload(name: str) -> str | None:
    """Which of the paper's workloads one of ours is a replay of, by its name; None: none of them."""
    lowered = name.lower()
    if "tau2" in lowered or "tau²" in lowered or "τ²" in lowered:
        return "tau2"
    if "swe" in lowered:
        return "swe_one_gpu" if "one_gpu" in lowered else "swe"
    return None
