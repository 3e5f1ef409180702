"""What is written, and when."""

import io
import time

import pytest

from replay.progress import Progress, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_step_is_said_at_once_and_news_when_it_is_time() -> None:
    stream = io.StringIO()
    progress = Progress(stream, every_s=60)
    progress.step("starting")
    progress.show("turn 1")
    progress.show("turn 2")
    assert stream.getvalue() == "starting\n"


def test_a_long_step_is_repeated_with_its_seconds() -> None:
    stream = io.StringIO()
    with Progress(stream, every_s=0.05) as progress:
        progress.step("starting")
        progress._step_at -= 7  # as if it had begun 7 s ago
        time.sleep(0.2)
    assert stream.getvalue().startswith("starting\nstarting · 7 s\n")


def test_a_terminal_keeps_one_line_and_is_left_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    with Progress(stream, every_s=60) as progress:
        progress.step("x" * 50)
    assert stream.getvalue() == "\r" + "x" * 19 + "\x1b[K" + "\r\x1b[K"


def test_a_line_that_stays_does_not_run_into_the_one_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    progress = Progress(stream, every_s=60)
    progress.step("2 of 8")
    progress.say("run 3 ended")
    assert stream.getvalue() == "\r2 of 8\x1b[K" + "\r\x1b[Krun 3 ended\n" + "\r2 of 8\x1b[K"


def test_a_reader_that_went_away_does_not_end_the_run() -> None:
    stream = io.StringIO()
    with Progress(stream, every_s=60) as progress:
        stream.close()
        progress.step("starting")


@pytest.mark.parametrize(("seconds", "text"), [(7.4, "0:07"), (750, "12:30"), (3723, "1:02:03")])
def test_durations_read_like_a_clock(seconds: float, text: str) -> None:
    assert duration(seconds) == text
