"""Findings as a table in the terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from replay.doctor.finding import NOT_RUN, Finding, can_run

_COLOURS = {"ok": "green", "advice": "yellow", "failed": "red", NOT_RUN: "yellow"}


def show(title: str, findings: Sequence[Finding], console: Console) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("check", "state", "found", "advice"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        table.add_row(finding.check, _state(finding), Text(finding.found), Text(finding.advice))
    console.print(table)


def show_engines(engines: Mapping[str, Sequence[Finding]], console: Console) -> None:
    """One row an engine: the first thing that stands in its way, or how far it is known to work."""
    table = Table(title="engines", title_justify="left", title_style="bold")
    for column in ("engine", "state", "found", "advice"):
        table.add_column(column, overflow="fold")
    for name, findings in engines.items():
        worst = next((one for one in findings if one.state == "failed"), None)
        not_run = next((one for one in findings if one.state == NOT_RUN), None)
        told = worst or not_run or Finding(check="", state="ok", found="nothing stands in its way")
        state = Text(" · ").join(map(_state, filter(None, (not_run, worst)))) if worst or not_run else _state(told)
        table.add_row(
            name, state, Text(f"{told.check}: {told.found}" if told.check else told.found), Text(told.advice)
        )
    console.print(table)


def verdict(findings: Sequence[Finding]) -> str:
    failed = [finding.check for finding in findings if finding.state == "failed"]
    if not can_run(findings):
        return f"It can't run here: {', '.join(failed)}."
    advised = sum(finding.state == "advice" for finding in findings)
    return "It can run here." + (f" For its numbers, see the advice ({advised})." if advised else "")


def _state(finding: Finding) -> Text:
    return Text(finding.state, style=_COLOURS[finding.state])
