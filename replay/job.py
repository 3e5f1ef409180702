"""One run of a sweep: every way it can end is a status on the disk and an exit code."""

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from engines.base import EngineError
from replay.batch import Row
from replay.config import resolved
from replay.ending import FAILED, USAGE
from replay.host_lock import host_lock
from replay.progress import Progress
from replay.record import RecordError
from replay.resume import RefusedError
from replay.rows import has_turns, note_failure
from replay.run import Run, execute
from workloads.session import WorkloadError


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    """What ``replay`` with this run alone would exit with."""
    complaint: str | None = None
    """One line for the user; None when all is well."""


def run_row(
    row: Row,
    progress: Progress,
    *,
    number: int,
    runs: int,
    resume: bool,
    began: Callable[[], None] = lambda: None,
) -> Ended:
    """Run it when the machine is free.

    Args:
        number: which run of the command it is, of ``runs``.
        began: called when the machine is this run's.

    Raises:
        KeyboardInterrupt, SystemExit: it was stopped; what is done is kept and the result says ``interrupted``.
    """
    config: Mapping[str, Any] = row.config
    try:
        settings, config = resolved(row.config)
        row.folder.mkdir(parents=True, exist_ok=True)
        run = Run(
            engine=settings.engine,
            workload=settings.workload,
            model=settings.model,
            folder=row.folder,
            repeat=settings.repeat,
            retries=settings.retries,
            on_failure=settings.on_failure,
            number=number,
            runs=runs,
            telemetry=settings.telemetry,
            arrival=settings.arrival,
            order=settings.order,
            pressure=settings.pressure,
            tune=settings.tune,
            resume=resume,
            config_hash=row.config_hash,
            config=config,
            command=row.command,
        )
        said = f"{run.title} · waiting: "
        with host_lock(settings.lock, f"replay {row.folder.name}", lambda busy: progress.show(said + busy)):
            began()
            execute(run, progress)
    except RefusedError as error:
        return Ended(USAGE, str(error))  # the row stays as it is
    except (WorkloadError, EngineError, RecordError, OSError) as error:
        _note(row, str(error), config)
        # What fails before the first turn is the user's to correct, who can't change what an engine does later.
        later = isinstance(error, EngineError) and has_turns(row.folder)
        return Ended(FAILED if later else USAGE, str(error))
    return Ended(0)


def survived(row: Row, progress: Progress, **how: Any) -> Ended:
    """As ``run_row``, for a run that is one of many: a mistake in this program costs this one, not the others."""
    try:
        return run_row(row, progress, **how)
    # Whatever it is, the sweep goes on; the row and the log say it.
    except Exception as error:  # noqa: BLE001
        traceback.print_exc()
        _note(row, f"{type(error).__name__}: {error}", row.config)
        return Ended(FAILED, f"{type(error).__name__}: {error} (a mistake of this program; its trace is above)")


def _note(row: Row, error: str, config: Mapping[str, Any]) -> None:
    with suppress(RecordError, OSError):  # a full disk, which is the error's own cause
        note_failure(row.folder, error, config=config, config_hash=row.config_hash, command=row.command)
