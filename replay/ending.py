"""What a command leaves: a report of what it replayed, or nothing, and its exit code."""

import importlib
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from replay.batch import BATCH_FILE, Batch
from replay.record import RESULT_FILE, TURNS_FILE, RecordError, read_result

FAILED, USAGE = 1, 2
LOG_FILE = "server.log"


def complain(error: object) -> int:
    """Say in one line what is wrong; return the exit code of what can't be done as asked."""
    print(f"replay: {error}", file=sys.stderr)
    return USAGE


def finish(batch: Batch) -> int:
    """Build the report from what is on disk, or leave nothing behind; return the exit code."""
    results = [*batch.folder.glob(RESULT_FILE), *batch.folder.glob(f"*/{RESULT_FILE}")]
    if not any(has_turns(path.parent) for path in results):
        _leave_nothing(batch)
        return USAGE
    for folder in batch.fresh:
        with suppress(OSError):  # not empty: it was begun
            folder.rmdir()
    if batch.report and not _report(batch.folder, batch.report):
        return FAILED
    return FAILED if any(_failed(path.parent) for path in results) else 0


def _leave_nothing(batch: Batch) -> None:
    """Remove what was begun, but for what an engine said: its log may hold the reason."""
    drop_hydras(batch)
    if not batch.resume:
        with suppress(OSError):  # no folder could be made
            (batch.folder / BATCH_FILE).unlink(missing_ok=True)
    for folder in batch.fresh:
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != LOG_FILE or not path.stat().st_size:
                path.unlink()
    for folder in (*batch.fresh, *batch.made):
        with suppress(OSError):  # not empty
            folder.rmdir()


def drop_hydras(batch: Batch) -> None:
    """Hydra's own note of a sweep; batch.json says more, without secrets."""
    with suppress(OSError):  # no folder could be made
        (batch.folder / "multirun.yaml").unlink(missing_ok=True)


def reporter(target: str) -> Callable[[Path], Any]:
    """Raises RecordError when there is no such function."""
    module, _, name = str(target).rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise RecordError(
            f"report={target}: {error}; name a function as <module>.<function>, or set report=null for none"
        ) from error
    if not callable(found):
        raise RecordError(f"report={target}: no function; name one as <module>.<function>, or set report=null")
    return found  # type: ignore[no-any-return]


def _report(folder: Path, target: str) -> bool:
    """Whether it was written."""
    from replay.progress import Progress

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


def has_turns(folder: Path) -> bool:
    """Whether a run folder holds any record."""
    turns = folder / TURNS_FILE
    return turns.is_file() and turns.stat().st_size > 0


def _failed(folder: Path) -> bool:
    result = read_result(folder)
    return result["status"] != "complete" or any(status != "complete" for status in result["sessions"].values())
