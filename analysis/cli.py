"""``analyse FOLDER``: the report of what `replay` recorded; other questions have a word of their own."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.command import Parser, console

if TYPE_CHECKING:
    from analysis.static_figures import Format
    from analysis.summary import Summary

EXAMPLES = """examples:
  analyse results/quickstart/2026-11-29_12-00-00
  analyse results/quickstart/2026-11-29_12-00-00 --baseline ik_llamacpp
  analyse results/swe --reference paper

Writes report.html, summary.md, results.json, turns.parquet and tables/*.csv into FOLDER. Exit status: 0 compared; 2
when there is nothing to compare or to write from (one line says why; the report of what each engine did alone is
written where it can be).

other commands:
  analyse export-baseline FOLDER   keep a run as a small file for `compare --gate`
  analyse logs FILE [FILE]         tokens a second from servers' own logs, without records
  analyse placement ROUTES         what each placement of experts would do, from recorded routes
"""
FIT = 4
"""So many engines fit side by side into a terminal, one a column; more are rows of the main columns."""
BRIEF = ("engine", "total request time", "saved", "95 % interval", "won", "TTFT after tool", "TPOT")


def main(arguments: Sequence[str] | None = None) -> None:
    if arguments is None:  # as a command: who stops reading the output ends it quietly
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["export-baseline"]:
        from analysis import export_cli

        sys.exit(export_cli.main(words[1:]))
    if words[:1] == ["placement"]:
        from analysis.placement import cli as placement_cli

        sys.exit(placement_cli.main(words[1:]))
    if words[:1] == ["logs"]:
        from analysis.server_logs import cli as logs_cli

        sys.exit(logs_cli.main(words[1:]))
    parser = Parser(
        "analyse",
        "Compare the engines of recorded runs: a page, a Markdown summary and machine-readable numbers.",
        EXAMPLES,
    )
    parser.add_argument(
        "folder", metavar="FOLDER", type=Path, help="a folder that `replay` wrote; runs below it count too"
    )
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help="the engine that the others are compared with (default: llamacpp where it ran)",
    )
    parser.add_argument(
        "--pictures",
        choices=("svg", "png"),
        help="also draw the main figures, linked in summary.md (needs the extra `static`)",
    )
    parser.add_argument(
        "--reference",
        metavar="paper|FILE",
        help="show rows of the paper's numbers beside these, marked as such; no statistic reads them",
    )
    chosen = parser.parse_args(words)
    sys.exit(_analyse(chosen.folder, chosen.baseline, chosen.pictures, chosen.reference))


def _analyse(folder: Path, baseline: str | None, pictures: "Format | None", reference: str | None) -> int:
    # pandas and plotly take a second to load, which --help should not wait for.
    from analysis import wording
    from analysis.compare import AnalysisError
    from analysis.paper import ReferenceFileError, read_reference
    from analysis.report import write_summary
    from analysis.summary import summarise
    from replay.record import RecordError

    try:
        rows = read_reference(reference) if reference else None
        summary = summarise(folder, baseline=baseline, reference=rows)
        report = write_summary(summary, form=pictures)
    except (RecordError, AnalysisError, ReferenceFileError) as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(
            f"{error.filename or folder}: {error.strerror}; free some space or name a folder that can be written"
        )
    parts = summary.parts
    if not any(part.comparisons for part in parts) or any(part.pairing.differences for part in parts):
        why = " ".join(wording.verdicts(summary))
        return _refuse(f"{folder}: {why} What each engine did by itself is in {report}")
    _show(summary, report)
    return 0


def _refuse(reason: str) -> int:
    print(f"analyse: {reason}", file=sys.stderr)
    return 2


def _show(summary: "Summary", report: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    from analysis import wording
    from analysis.tables.engines import engine_table

    terminal = console()
    for warning in wording.warnings(summary):
        terminal.print(Text(f"! {warning}", style="yellow"))
    for verdict in wording.verdicts(summary):
        terminal.print(Text(verdict, style="bold"))
    table = engine_table(summary)
    header, *rows = (table.columns, *table.rows)
    if len(rows) <= FIT:
        header, *rows = zip(header, *rows, strict=True)
    else:
        kept = [i for i, column in enumerate(header) if column.startswith(BRIEF)]
        header, *rows = (
            tuple(line[i].partition(" (")[0] if i else line[0] for i in kept) for line in (header, *rows)
        )
    shown = Table()
    for position, column in enumerate(header):
        shown.add_column(Text(column), justify="right" if position else "left", overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, row))
    terminal.print(shown)
    for path in (report, report.with_name("summary.md"), report.with_name("results.json")):
        terminal.print(Text(str(path)), soft_wrap=True)


if __name__ == "__main__":
    main()
