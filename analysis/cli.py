"""``analyse FOLDER``: the report of what `replay` recorded."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.summary import Summary

EXAMPLES = """examples:
  analyse results/quickstart/2026-11-29_12-00-00
  analyse results/quickstart/2026-11-29_12-00-00 --baseline ik_llamacpp

Writes report.html, summary.md and results.json into FOLDER. Exit status: 0 written, 2 nothing to write from.
"""
FIT = 4
"""So many engines fit side by side into a terminal, one a column; more are rows of the main columns."""
BRIEF = ("engine", "total request time", "saved", "95 % interval", "won", "TTFT after tool", "TPOT")


def main(arguments: Sequence[str] | None = None) -> None:
    if arguments is None:  # as a command: who stops reading the output ends it quietly
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    parser = argparse.ArgumentParser(
        prog="analyse",
        description="Compare the engines of recorded runs: a page, a Markdown summary and machine-readable numbers.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder", metavar="FOLDER", type=Path, help="a folder that `replay` wrote; runs below it count too"
    )
    parser.add_argument(
        "--baseline",
        metavar="NAME",
        help="the engine that the others are compared with (default: llamacpp where it ran)",
    )
    chosen = parser.parse_args(arguments)
    sys.exit(_analyse(chosen.folder, chosen.baseline))


def _analyse(folder: Path, baseline: str | None) -> int:
    # pandas and plotly take a second to load, which --help should not wait for.
    from analysis.compare import AnalysisError
    from analysis.report import write_summary
    from analysis.summary import summarise
    from replay.record import RecordError

    try:
        summary = summarise(folder, baseline=baseline)
        report = write_summary(summary)
    except (RecordError, AnalysisError) as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(
            f"{error.filename or folder}: {error.strerror}; free some space or name a folder that can be written"
        )
    _show(summary, report)
    return 0


def _refuse(reason: str) -> int:
    print(f"analyse: {reason}", file=sys.stderr)
    return 2


def _show(summary: "Summary", report: Path) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from analysis import wording
    from analysis.tables import engine_table

    console = Console(highlight=False)
    for warning in wording.warnings(summary):
        console.print(Text(f"! {warning}", style="yellow"))
    for verdict in wording.verdicts(summary):
        console.print(Text(verdict, style="bold"))
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
    console.print(shown)
    for path in (report, report.with_name("summary.md"), report.with_name("results.json")):
        console.print(Text(str(path)), soft_wrap=True)


if __name__ == "__main__":
    main()
