"""The page as text: what each of its parts shows."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

from analysis import wording
from analysis.checks import INVALID, Check
from analysis.figures.catalogue import figures
from analysis.figures.colours import looks
from analysis.figures.figure import plotly_js
from analysis.page.formulas import column_formulas
from analysis.page.turns import packed, session_rows, turn_data
from analysis.runs import Run
from analysis.summary import Summary
from analysis.tables.catalogue import tables
from analysis.tables.table import Table

_FOLDER = Path(__file__).parent
_TEMPLATE = "page.html.jinja"
_SCRIPTS = ("theme", "tables", "figures", "turns")
_BREAK = re.compile(r"(?<=\d) (?=(?:%|s|ms)(?:\W|$))|(?<=[\d%]) (?=to −?\d)|(?<=\d to) (?=−?\d)")


def page(summary: Summary) -> str:
    """The whole page as text; it loads nothing from anywhere. The same records give the same text."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["unbroken"] = _unbroken
    made = tables(summary)
    by_engine = {key: look.colour for key, look in looks(summary).items()}
    formulas = list(dict.fromkeys(formula for table in made for formula in table.formulas))
    return environment.get_template(_TEMPLATE).render(
        title=wording.title(summary),
        name=wording.name(summary),
        flags=wording.flags(summary),
        verdicts=wording.verdicts(summary),
        warnings=wording.warnings(summary),
        facts=_facts(summary),
        checks=list(_checks(summary)),
        every_check=[(wording.checked(summary, check), check) for check in _by_name(summary.checks)],
        tables=[_table(table, formulas) for table in made],
        formulas=[_headed(formula) for formula in formulas],
        figures=[(figure, _inside_script(figure.spec)) for figure in figures(summary)],
        parts=[_part(summary, part, by_engine) for part in summary.parts],
        runs=[_run(run) for run in summary.runs],
        environment=_environment(summary),
        colours=by_engine,
        workload=summary.workload,
        folder=summary.folder.resolve().name,
        style=(_FOLDER / "style.css").read_text(),
        script="\n".join((_FOLDER / "script" / f"{name}.js").read_text() for name in _SCRIPTS),
        plotly=_library(),
    )


@cache
def _library() -> str:
    """The same for every page."""
    return packed(plotly_js().encode())


def _facts(summary: Summary) -> list[str]:
    """What was run, in a line."""
    verified = sum(engine.turns_verified for engine in summary.engines)
    replayed = sum(engine.turns_replayed for engine in summary.engines)
    failed = len(summary.failed_checks)
    passed = sum(check.ok is True for check in summary.checks)
    return [
        f"{wording.count(failed, 'check')} of {len(summary.checks):,} not passed"
        if failed
        else f"{wording.count(passed, 'check')} passed",
        f"{wording.share(verified, replayed)} turns verified token by token",
        wording.count(len(summary.runs), "engine"),
        *(
            f"{wording.count(part.workload.sessions, 'session')} of {wording.experiment(part)}"
            for part in summary.parts
        ),
    ]


def _by_name(checks: Sequence[Check]) -> list[Check]:
    """The engines beside each other within a check."""
    names = list(dict.fromkeys(check.name for check in checks))
    return sorted(checks, key=lambda check: names.index(check.name))


def _checks(summary: Summary) -> Iterator[dict[str, Any]]:
    """One row a check: what it found wrong, engine by engine, or that every engine passed; the broken ones first."""
    names = list(dict.fromkeys(check.name for check in (*summary.failed_checks, *summary.checks)))
    ordered = sorted(summary.checks, key=lambda check: names.index(check.name))
    for name, group in groupby(ordered, key=lambda check: check.name):
        checks = list(group)
        known = [check for check in checks if check.ok is not None]
        failed = [check for check in checks if check.ok is False]
        worst = "invalid" if any(check.severity == INVALID for check in failed) else "warning"
        yield {
            "name": name,
            "state": worst if failed else ("passed" if known else "unknown"),
            "said": f"{sum(check.ok is True for check in checks)} of {len(checks)}" if known else "not told",
            "wanted": next((check.threshold for check in checks if check.threshold), ""),
            "seen": [(wording.checked(summary, check), check.value) for check in failed],
            "advice": list(dict.fromkeys(check.advice for check in failed if check.advice)),
        }


def _part(summary: Summary, part: Summary, by_engine: Mapping[str, str]) -> dict[str, Any]:
    return {
        "title": wording.experiment(part) if summary.panels else "",
        "labels": [run.label for run in part.runs],
        "bars": _bars(part),
        "sessions": session_rows(part),
        "turns": packed(orjson.dumps(turn_data(part, by_engine))),
    }


def _bars(summary: Summary) -> list[dict[str, Any]]:
    """Each engine's total request time, fastest first; lengths in percent of the longest."""
    engines = sorted(
        (engine for engine in summary.engines if engine.total_request_s), key=lambda e: e.total_request_s or 0.0
    )
    longest = max((engine.total_request_s or 0.0 for engine in engines), default=0.0)
    against = {c.candidate: c for c in summary.comparisons if c.baseline == summary.baseline}
    return [
        {
            "key": engine.key,
            "label": engine.label,
            "total": wording.seconds(engine.total_request_s),
            "prefill": round(100 * (engine.client_prefill_s or 0.0) / longest, 2),
            "rest": round(100 * ((engine.total_request_s or 0.0) - (engine.client_prefill_s or 0.0)) / longest, 2),
            "note": "baseline"
            if engine.key == summary.baseline
            else wording.times(against[engine.key].speedup)
            if engine.key in against
            else "",
        }
        for engine in engines
    ]


def _table(table: Table, formulas: Sequence[str]) -> dict[str, Any]:
    columns = [
        {"name": name, "formula": None if formula is None else formulas.index(formula)}
        for name, formula in zip(table.columns, column_formulas(table), strict=True)
    ]
    rows = [
        {"texts": texts, "cells": cells, "source": table.source(number)}
        for number, (texts, cells) in enumerate(zip(table.rows, table.lines, strict=True))
    ]
    reasons = list(dict.fromkeys(cell.why for line in table.lines for cell in line if cell.why))
    return {"table": table, "anchor": f"table-{table.name}", "columns": columns, "rows": rows, "reasons": reasons}


def _headed(formula: str) -> tuple[str, str]:
    """The term that a formula defines, and the rest."""
    found = re.match(r"[^;]{1,60}?(?= = |: )", formula)
    return (found[0], formula[found.end() :]) if found else ("", formula)


def _run(run: Run) -> dict[str, Any]:
    result = run.result
    wall_ns = (result.get("clock") or {}).get("wall_ns")
    started = (
        datetime.fromtimestamp(wall_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if wall_ns else wording.ABSENT
    )
    return {
        "key": run.key,
        "label": run.label,
        "note": result["engine"].get("note") or "",
        "started": started,
        "status": run.status,
        "command": "\n".join(shlex.join(result["command"]) for result in run.results if result.get("command")),
        "server": _pretty(result["engine"].get("server") or {}),
        "telemetry": _pretty(result.get("telemetry") or {}),
        "config": _pretty(result["config"]),
    }


def _environment(summary: Summary) -> list[tuple[str, list[tuple[str, str]]]]:
    """Field → what it is; one line where all runs agree, else one an engine."""
    fields = list(dict.fromkeys(field for run in summary.runs for field in run.result["environment"]))
    shown = []
    for field in fields:
        values = [(run.label, _plain(run.result["environment"].get(field))) for run in summary.runs]
        shown.append((field, [("", values[0][1])] if len({text for _, text in values}) == 1 else values))
    return shown


def _plain(value: Any) -> str:
    if value is None:
        return wording.ABSENT
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return str(value)


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)


def _unbroken(text: str) -> str:
    """A number stays on one line with its unit, an interval with its own end."""
    return _BREAK.sub("\u00a0", text)


def _inside_script(text: str) -> str:
    """JSON that can't end the script element around it."""
    return text.replace("<", "\\u003c")
