"""Runs what is left of a batch, here or through a launcher, and says how each run ended."""

import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import Empty
from typing import Any

import psutil

from replay.batch import Batch, Row
from replay.config import resolved
from replay.ending import FAILED, complain
from replay.job import Ended, run_row, survived
from replay.launched import ENDED, LOG_FILE, RUNNING, Returned, read_note
from replay.launchers import Launching
from replay.progress import Progress, duration
from replay.record import RESULT_FILE, RecordError, read_result
from replay.rows import finished, note_failure

STOP_WITHIN_S = 30.0
"""A run that is stopped keeps what is done, and ends its engine."""
COMES_BACK_S = 5.0
"""So long what has ended may take to be known here."""


def left(batch: Batch) -> list[Row]:
    """Those of its runs that are not there yet, or are with other settings."""
    return [row for row in batch.rows if not (_unchanged(row) and finished(row.folder))]


def _unchanged(row: Row) -> bool:
    if not (row.folder / RESULT_FILE).is_file():
        return False
    there = read_result(row.folder).get("config_hash")
    return not there or not row.config_hash or there == row.config_hash


def sweep(batch: Batch, rows: list[Row], codes: dict[Path, int]) -> None:
    """Run them; every failure is a code and a row's status.

    Args:
        codes: run folder → what this run alone would exit with; filled as they end.

    Raises:
        RecordError: a launcher that has nothing to run on.
        KeyboardInterrupt, SystemExit: stopped; so are the runs that were under way.
    """
    if batch.launcher:
        _launch(batch, rows, batch.launcher, codes)
        return
    for number, row in enumerate(rows):
        with Progress() as progress:
            run = survived if batch.sweep else run_row
            ended = run(row, progress, number=number, runs=len(rows), resume=batch.resume)
        codes[row.folder] = ended.code
        if ended.complaint:
            complain(f"{_prefix(batch, row)}{ended.complaint}")


def _prefix(batch: Batch, row: Row) -> str:
    return f"{row.name}: " if batch.sweep else ""


def _launch(batch: Batch, rows: list[Row], launcher: Mapping[str, Any], codes: dict[Path, int]) -> None:
    launching = Launching(batch, rows, launcher)
    began_s = time.monotonic()
    launching.start()
    with Progress() as progress:

        def settle(row: Row, came: Returned | BaseException) -> None:
            ended, where = _ended(row, came, stopped=launching.stopped)
            codes[row.folder] = ended.code
            about = f"run {len(codes)}/{len(rows)} {row.folder.name}{where}"
            said = ended.complaint or f"ended after {duration(time.monotonic() - began_s)}"
            progress.say(f"replay: {row.name}: {said}" if ended.complaint else f"{about} · {said}")

        try:
            while len(codes) < len(rows):
                progress.show(f"{len(codes)}/{len(rows)} runs ended{_under_way(launching)}")
                with suppress(Empty):
                    settle(*launching.ended.get(timeout=0.5))
        except (KeyboardInterrupt, SystemExit):
            progress.step("stopping the runs that are under way")
            _stop(launching)
            while not launching.ended.empty():
                settle(*launching.ended.get())
            raise
        finally:
            launching.close()


def _ended(row: Row, came: Returned | BaseException, *, stopped: bool) -> tuple[Ended, str]:
    """And where, in words."""
    if isinstance(came, Returned):
        where = f" on {came.host}"
        if came.left:
            where += f" (too large to come home: {', '.join(came.left)})"
        return Ended(came.code, came.complaint), where
    if stopped:
        return Ended(128 + signal.SIGTERM, "stopped"), ""
    said = " ".join(str(came).split()) or type(came).__name__
    error = f"the worker that had this run is gone ({type(came).__name__}: {said[:300]})"
    try:
        _, config = resolved(row.config)
    except RecordError:
        config = dict(row.config)
    with suppress(RecordError, OSError):  # a full disk: the exit code still says it
        note_failure(row.folder, error, config=config, config_hash=row.config_hash, command=row.command)
    return Ended(FAILED, error), ""


def _under_way(launching: Launching) -> str:
    """The newest of what one of them says, where it can be read here."""
    rows = launching.given_out()
    said = f" · {len(rows)} given out"
    for row in rows:
        note = read_note(row.folder)
        if note and note["batch"] == launching.batch.id and note["status"] == RUNNING:
            return f"{said} · {_last_line(row.folder / LOG_FILE)}"
    return said


def _last_line(path: Path) -> str:
    with suppress(OSError), path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - 1000))
        lines = log.read().decode(errors="replace").splitlines()
        return lines[-1] if lines else ""
    return ""


def _stop(launching: Launching) -> None:
    """Those on this host are told to; of the others their launcher is."""
    launching.stop()
    launching.cancel()
    told: set[int] = set()
    began_s = time.monotonic()
    while launching.alive and (waited_s := time.monotonic() - began_s) < STOP_WITHIN_S:
        notes = [note for row in launching.given_out() if (note := read_note(row.folder))]
        at_work = [note for note in notes if note["batch"] == launching.batch.id and note["status"] != ENDED]
        if launching.kind == "RayLauncher":
            pass  # it has told them
        elif not at_work and waited_s > COMES_BACK_S:
            break  # a scheduler may take its time to say that it has dropped what was waiting
        else:
            for note in at_work:
                _tell(note, told)
        time.sleep(0.1)
    if launching.alive:
        launching.cancel(force=True)


def _tell(note: dict[str, Any], told: set[int]) -> None:
    if note["host"] != socket.gethostname() or note["pid"] in told:
        return
    told.add(note["pid"])
    with suppress(psutil.Error):
        process = psutil.Process(note["pid"])
        if process.create_time() == note["started_s"]:  # and no other that has its number now
            process.send_signal(signal.SIGTERM)
