"""A folder of runs to ``report.html``, ``summary.md`` and ``results.json``."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from analysis import wording
from analysis.figures import colours, figures, plotly_js
from analysis.results import results
from analysis.runs import Run
from analysis.summary import Check, Summary, summarise
from analysis.tables import Table, engine_table, escaped, markdown, tables

REPORT_FILE = "report.html"
SUMMARY_FILE = "summary.md"
RESULTS_FILE = "results.json"
_TEMPLATE = "page.html.jinja"
_BREAK = re.compile(r"(?<=\d) (?=(?:%|s|ms)(?:\W|$))|(?<=[\d%]) (?=to −?\d)|(?<=\d to) (?=−?\d)")


def write_report(folder: Path, *, baseline: str | None = None) -> Path:
    """Write the three files into ``folder`` from every run at or below it; all appear whole or none does.

    The same records give the same bytes.

    Args:
        baseline: key of the engine that the others are compared with; see ``compare.choose_baseline``.

    Returns:
        the path of ``report.html``.

    Raises:
        RecordError: records that are missing, damaged or impossible.
        AnalysisError: ``baseline`` is no engine of these runs.
        OSError: ``folder`` can't be written; names the file.
    """
    return write_summary(summarise(folder, baseline=baseline))


def write_summary(summary: Summary) -> Path:
    """As ``write_report``, from numbers that are there already."""
    folder = summary.folder
    contents = {
        RESULTS_FILE: orjson.dumps(results(summary), option=orjson.OPT_INDENT_2),
        SUMMARY_FILE: summary_markdown(summary).encode(),
        REPORT_FILE: page(summary).encode(),
    }
    _replace_all({folder / name: content for name, content in contents.items()})
    return folder / REPORT_FILE


def _replace_all(contents: Mapping[Path, bytes]) -> None:
    """Everything is on the disk before the first file is replaced."""
    temporaries = {path: path.with_name(path.name + ".new") for path in contents}
    path = next(iter(contents))
    try:
        for path, content in contents.items():
            temporaries[path].write_bytes(content)
        for path, temporary in temporaries.items():
            temporary.replace(path)
    except OSError as error:
        # A failed write, unlike a failed open, names no file.
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        for temporary in temporaries.values():
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def page(summary: Summary) -> str:
    """The whole page as text; it loads nothing from anywhere."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["unbroken"] = _unbroken
    return environment.get_template(_TEMPLATE).render(
        title=wording.title(summary),
        verdicts=wording.verdicts(summary),
        warnings=wording.warnings(summary),
        checks=[(wording.checked(summary, check), check) for check in _by_name(summary.checks)],
        runs=[_run(run) for run in summary.runs],
        environment=_environment(summary),
        tables=tables(summary),
        figures=[(figure, _inside_script(figure.spec)) for figure in figures(summary)],
        colours=colours([run.key for run in summary.runs]),
        workload=summary.workload,
        folder=summary.folder.resolve().name,
        plotly_js=plotly_js(),
    )


def _by_name(checks: Sequence[Check]) -> list[Check]:
    """The engines beside each other within a check."""
    names = list(dict.fromkeys(check.name for check in checks))
    return sorted(checks, key=lambda check: names.index(check.name))


def summary_markdown(summary: Summary) -> str:
    """A pull request's comment: verdicts, warnings, the engines' table, its formulas folded away."""
    table, workload = engine_table(summary), summary.workload
    notes = [(run.label, run.result["engine"].get("note")) for run in summary.runs]
    parts = [
        f"### {escaped(wording.title(summary))}",
        f"**{escaped(wording.verdicts(summary)[0])}**",
        "\n".join(f"- {escaped(verdict)}" for verdict in wording.verdicts(summary)[1:]),
        "\n".join(f"> ⚠ {escaped(warning)}  " for warning in wording.warnings(summary)),
        markdown(table),
        "\n".join(f"- {escaped(label)}: {escaped(note)}" for label, note in notes if note),
        _folded(table),
        f"{workload.sessions:,} sessions and {workload.turns:,} turns of {escaped(workload.name)} "
        f"(`{workload.hash[:12]}`). Figures and machine: `{REPORT_FILE}`; every number: `{RESULTS_FILE}`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _folded(table: Table) -> str:
    formulas = "\n".join(f"- {escaped(formula)}" for formula in table.formulas)
    return f"<details><summary>Formulas</summary>\n\n{formulas}\n\n</details>"


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
