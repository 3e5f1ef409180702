"""An engine's log file in the run folder."""

import os
from pathlib import Path

from engines.base import EngineError

_TAIL_BYTES = 64 * 1024


class Log:
    """``server.log``: every start of the engine adds to it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "server.log"
        self._start = 0

    def begin(self) -> None:
        """A new start: what the file holds by now is no part of the tail."""
        try:
            self._start = self.path.stat().st_size
        except FileNotFoundError:
            self._start = 0

    def tail(self, lines: int = 20) -> list[str]:
        """The newest lines since the newest start."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._start, end - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except FileNotFoundError:
            return []
        return text.splitlines()[-lines:] if lines else []

    def start_error(self, message: str) -> EngineError:
        """``message`` with the newest lines below it."""
        return EngineError("\n".join([message, *(f"  {line}" for line in self.tail())]), kind="start")
