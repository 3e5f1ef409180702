"""What the commands share: a usage error is one line, a table is as wide as its reader."""

import argparse
import shutil
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 120
"""Of output that no terminal reads, as a CI service's log."""


class Parser(argparse.ArgumentParser):
    """Ends with status 2 and one line on stderr where the arguments are none."""

    def __init__(self, prog: str, description: str, examples: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, width=shutil.get_terminal_size((WIDTH, 25)).columns)
