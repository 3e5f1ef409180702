"""The end of a command: the report from what is on the disk, and the exit code."""

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

from replay.batch import BATCH_FILE, Batch
from replay.ending import FAILED, USAGE, complain
from replay.gate import GateSettings
from replay.progress import Progress
from replay.record import RecordError
from replay.rows import COMPLETE, INVALID, Status, has_turns, status

LOG_FILE = "server.log"
WARN = "warn"
SHOWN = 10
"""Rows that are named one by one."""


def finish(batch: Batch, codes: Mapping[Path, int]) -> int:
    """Build the report from what is on disk, or leave nothing behind; return the exit code.

    Args:
        codes: of the runs that ended.
    """
    folders = [row.folder for row in batch.rows]
    if not any(has_turns(folder) for folder in folders) and set(codes.values()) <= {USAGE}:
        _leave_nothing(batch)
        return USAGE
    for folder in batch.fresh:
        with suppress(OSError):  # not empty: it was begun
            folder.rmdir()
    if batch.resume and codes and set(codes.values()) == {USAGE}:
        return USAGE  # every run is as it was
    if batch.sweep:
        _say(batch)
    if batch.report and any(has_turns(folder) for folder in folders) and not _report(batch.folder, batch.report):
        return FAILED
    ended_well = all(_ended_well(batch, status(folder)) for folder in folders)
    return _judged(batch) or (0 if ended_well else FAILED)


def _ended_well(batch: Batch, ended: Status) -> bool:
    # Of one run, whose report says it first, whether the numbers are wrong is for its reader to see.
    excused = not batch.sweep or (ended.noise and batch.rows[0].config.get("on_noise") == WARN)
    return ended.name == COMPLETE or (ended.name == INVALID and excused)


def _judged(batch: Batch) -> int:
    """The verdict of the gate that the configuration asks for; 0 where it asks for none."""
    gate = GateSettings(**batch.rows[0].config.get("gate", {})) if batch.rows else GateSettings()
    return int(reporter(gate.judge, "gate.judge")(batch.folder, gate)) if gate.base is not None else 0


def _say(batch: Batch) -> None:
    """How the runs ended, and of those that did not end well which."""
    found = [(row.folder.name, status(row.folder)) for row in batch.rows]
    counts = Counter(ended.name for _, ended in found)
    print("runs     " + " · ".join(f"{number} {name}" for name, number in counts.items()), file=sys.stderr)
    bad = [(name, ended) for name, ended in found if ended.name != COMPLETE]
    for name, ended in bad[:SHOWN]:
        why = f": {' '.join(ended.why.split())}" if ended.why else ""
        print(f"  {ended.name} {name}{why}", file=sys.stderr)
    if len(bad) > SHOWN:
        print(f"  and {len(bad) - SHOWN} more", file=sys.stderr)


def _leave_nothing(batch: Batch) -> None:
    """Remove what was begun, but for what an engine said: its log may hold the reason."""
    if not batch.resume and not batch.others:
        with suppress(OSError):  # no folder could be made
            (batch.folder / BATCH_FILE).unlink(missing_ok=True)
        rmtree(batch.folder / ".submitit", ignore_errors=True)
    for folder in batch.fresh:
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_dir():
                with suppress(OSError):
                    path.rmdir()
            elif path.name != LOG_FILE or not path.stat().st_size:
                path.unlink()
    for folder in (*batch.fresh, *batch.made):
        with suppress(OSError):  # not empty
            folder.rmdir()


def reporter(target: str, setting: str = "report") -> Callable[..., Any]:
    """Raises RecordError when there is no such function."""
    module, _, name = str(target).rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RecordError(
            f"{setting}={target}: {error}; name a function as <module>.<function>, or set {setting}=null for none"
        ) from error
    if not callable(found):
        raise RecordError(f"{setting}={target}: no function; name one as <module>.<function>, or set {setting}=null")
    return found  # type: ignore[no-any-return]


def _report(folder: Path, target: str) -> bool:
    """Whether it was written."""
    try:
        with Progress() as progress:
            progress.step("writing the report")
            page = Path(reporter(target)(folder))
    except RecordError as error:
        complain(f"no report: {error}")
        return False
    except OSError as error:
        complain(
            f"no report: {error.filename or folder}: {error.strerror}; "
            f"the records are kept: free some space, then run `analyse {_shown(folder)}`"
        )
        return False
    with suppress(BrokenPipeError):  # nobody reads it
        print(f"report   {_shown(page)}\nsummary  {_shown(folder / 'summary.md')}")
    return True


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
