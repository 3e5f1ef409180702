"""``analyse logs FILE [FILE …]``: tokens a second from what servers logged."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.command import Parser, console

if TYPE_CHECKING:
    from analysis.tables.table import Table

EXAMPLES = """examples:
  analyse logs server.log
  analyse logs old/server.log new/server.log            # with the ratio of the two
  docker logs llama 2>&1 | analyse logs -
  analyse logs old.log new.log --markdown >> comment.md

Exit status: 0 printed, 2 a log that can't be read or holds no timings.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = Parser(
        "analyse logs",
        "Tokens a second of prefill and decode from plain logs of llama-server (any version), SGLang "
        "(--log-requests) or vLLM, without records. Two logs are compared.",
        EXAMPLES,
    )
    parser.add_argument(
        "logs", metavar="FILE", type=Path, nargs="+", help="a server's log, plain or .gz; - is standard input"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON: every number, null where there is none")
    form.add_argument("--markdown", action="store_true", help="print a Markdown table")
    chosen = parser.parse_args(arguments)

    from analysis.server_logs.read import LogError, read_log

    try:
        logs = [read_log(path) for path in chosen.logs]
    except LogError as error:
        print(f"analyse logs: {error}", file=sys.stderr)
        return 2

    from analysis.server_logs import show
    from analysis.tables.table import markdown

    if chosen.json:
        print(json.dumps(show.as_json(logs), indent=2))
        return 0
    table = show.table(logs)
    if chosen.markdown:
        print(markdown(table) + "\n")
        print("\n".join(f"- {line}" for line in (*table.formulas, *show.lacking(logs))))
        return 0
    _print(table, show.lacking(logs))
    return 0


def _print(table: "Table", lacking: Sequence[str]) -> None:
    from rich.table import Table as Grid
    from rich.text import Text

    terminal = console()
    grid = Grid()
    for at, column in enumerate(table.columns):
        grid.add_column(Text(column), justify="right" if at else "left", overflow="fold")
    for row in table.rows:
        grid.add_row(*map(Text, row))
    terminal.print(grid)
    for line in table.formulas:
        terminal.print(Text(line, style="dim"))
    for line in lacking:
        terminal.print(Text(f"! {line}", style="yellow"))
