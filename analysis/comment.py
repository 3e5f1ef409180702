"""``summary.md``: the report as a pull request's comment, never longer than one may be."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from analysis import wording
from analysis.summary import Summary
from analysis.tables.engines import engine_table
from analysis.tables.main_results import main_table
from analysis.tables.table import Table, escaped, markdown

LONGEST = 65_000
"""GitHub takes 65,536 characters; who posts it may want to add a line."""
MOST_WARNINGS = 20
LONGEST_LINE = 600


@dataclass(frozen=True, slots=True)
class _Section:
    text: str
    name: str = ""
    """How it is called when it is left out; empty: it stays."""


def summary_markdown(summary: Summary, *, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """Verdicts, warnings, the table of engines with its formulas; from the end, what does not fit is left out.

    Args:
        pictures: title and address of each, beside the file.
    """
    sections = [section for section in _sections(summary, pictures) if section.text]
    left_out: list[str] = []
    while len(_joined(sections, left_out)) > LONGEST:
        droppable = [section for section in sections if section.name]
        if not droppable:
            return _joined(sections, left_out)[: LONGEST - 2] + "…\n"
        left_out.insert(0, droppable[-1].name)
        sections.remove(droppable[-1])
    return _joined(sections, left_out)


def _joined(sections: list[_Section], left_out: list[str]) -> str:
    texts = [section.text for section in sections]
    if left_out:
        texts.append(
            f"Left out, since a comment may not be longer: {', '.join(left_out)}; they are in `report.html`."
        )
    return "\n\n".join(texts) + "\n"


def _sections(summary: Summary, pictures: Sequence[tuple[str, str]]) -> Iterator[_Section]:
    first, *others = wording.verdicts(summary)
    notes = [(run.label, run.result["engine"].get("note")) for run in summary.runs]
    warnings = wording.warnings(summary)
    more = len(warnings) - MOST_WARNINGS
    shown = warnings[:MOST_WARNINGS] + ([f"{more:,} more in `report.html`."] if more > 0 else [])
    yield _Section(f"### {_line(wording.title(summary))}")
    yield _Section(f"**{_line(first)}**")
    yield _Section("\n".join(f"> ⚠ {_line(warning)}  " for warning in shown))
    for part in summary.parts:
        title = f"#### {_line(wording.experiment(part))}\n\n" if summary.panels else ""
        yield _Section(title + markdown(engine_table(part)), "a table of engines")
    if summary.reference and (table := main_table(summary)).lines:
        yield _Section(f"#### {escaped(table.title)}\n\n{markdown(table)}", table.title)
        yield _Section(_folded(table), "its formulas")
    for title, address in pictures:
        yield _Section(f"![{_line(title)}]({address})", "a picture")
    for part in summary.parts:
        workload = part.workload
        yield _Section(
            f"{workload.sessions:,} sessions and {workload.turns:,} turns of {escaped(workload.name)} "
            f"(`{workload.hash[:12]}`). Figures and machine: `report.html`; every number: `results.json`, `tables/`."
        )
    yield _Section("\n".join(f"- {_line(verdict)}" for verdict in others), "the other verdicts")
    yield _Section("\n".join(f"- {_line(label)}: {_line(note)}" for label, note in notes if note), "notes on engines")
    yield _Section(_folded(engine_table(summary.parts[0])), "formulas")


def _line(text: str) -> str:
    shown = text if len(text) <= LONGEST_LINE else text[: LONGEST_LINE - 1] + "…"
    return escaped(shown)


def _folded(table: Table) -> str:
    formulas = "\n".join(f"- {escaped(formula)}" for formula in table.formulas)
    return f"<details><summary>Formulas</summary>\n\n{formulas}\n\n</details>"
