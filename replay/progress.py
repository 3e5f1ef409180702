"""One line that says where a run is, at least every few seconds.

Written by hand instead of drawn by a library: a redraw holds the interpreter for milliseconds, and the tokens whose
arrival is being stamped share it. A line here costs about 20 µs.
"""

import shutil
import sys
import threading
import time
from types import TracebackType
from typing import Self, TextIO

TERMINAL_EVERY_S = 0.5
PLAIN_EVERY_S = 4.5
"""Below 5 s, so that no step is silent for longer than that."""


class Progress:
    """Shows the newest text: one line rewritten in place on a terminal, else a line now and then.

    ``step`` names what begins and shows it at once; ``show`` replaces the text and lets the clock decide. Between
    calls a thread repeats the text with the seconds the step has taken.
    """

    def __init__(self, stream: TextIO | None = None, *, every_s: float | None = None) -> None:
        self._stream = stream or sys.stderr
        self._in_place = self._stream.isatty()
        self._every_s = every_s or (TERMINAL_EVERY_S if self._in_place else PLAIN_EVERY_S)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._text = ""
        self._step_at = self._shown_at = time.monotonic()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()
        if self._in_place:
            self._write("\r\x1b[K")

    def step(self, text: str) -> None:
        """Say what begins now."""
        with self._lock:
            self._text, self._step_at = text, time.monotonic()
            self._print(text)

    def say(self, line: str) -> None:
        """Write a line that stays."""
        with self._lock:
            self._write(("\r\x1b[K" if self._in_place else "") + line + "\n")
            if self._in_place and self._text:
                self._print(self._text)

    def show(self, text: str) -> None:
        """Replace the text; it is written when the last writing is old enough."""
        with self._lock:
            self._text = text
            self._step_at = time.monotonic()
            if self._step_at - self._shown_at >= self._every_s:
                self._print(text)

    def _tick(self) -> None:
        # Woken rarely: each wake takes the interpreter from the thread that stamps tokens.
        while not self._stop.wait(self._every_s / 4):
            with self._lock:
                now = time.monotonic()
                if self._text and now - self._shown_at >= self._every_s * 0.75:
                    waited_s = now - self._step_at
                    self._print(f"{self._text} · {waited_s:.0f} s" if waited_s >= 1 else self._text)

    def _print(self, text: str) -> None:
        self._shown_at = time.monotonic()
        if self._in_place:
            self._write("\r" + text[: shutil.get_terminal_size().columns - 1] + "\x1b[K")
        else:
            self._write(text + "\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (BrokenPipeError, ValueError):  # nobody reads any more: the run matters more than its progress
            self._stop.set()


def duration(seconds: float) -> str:
    """``0:07``, ``12:30`` or ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
