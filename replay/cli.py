"""``replay``: compose the configuration, replay, say where the report is."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

try:
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from replay.batch import Batch, Row, hidden, interrupted
    from replay.config import CONF, Config, NoteBatch, checked, misnamed_choice, one_line, register, unused_option
    from replay.ending import FAILED, USAGE, complain, drop_hydras, finish, has_turns, reporter
    from replay.record import RecordError
except KeyboardInterrupt:  # they take half a second
    raise SystemExit(130) from None

RESUME = "resume="

register()


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def job(composed: DictConfig) -> None:
    """Note one run; Hydra calls it once, or once for each run of a sweep. They are run when all are known."""
    job_config, batch = HydraConfig.get(), NoteBatch.noted
    assert batch is not None
    folder = Path(job_config.runtime.output_dir)
    if any(folder.iterdir()):
        raise RecordError(f"{folder}: already holds a run; choose another name=<name> or start a second later")
    batch.fresh.append(folder)
    checked(composed)
    config = OmegaConf.to_container(composed, resolve=True)
    command = ["replay", *job_config.overrides.task]
    batch.rows.append(Row(folder=folder, config=config, command=command))  # type: ignore[arg-type]


def main() -> NoReturn:
    """Exits with 0 all complete, 1 a run, session or report failed, 2 not as asked, 130 Ctrl-C, 143 SIGTERM."""
    # Hydra then raises its errors instead of printing many lines.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    NoteBatch.noted = None
    previous = signal.signal(signal.SIGTERM, _terminate)
    code: int | None = None
    try:
        if any(word.startswith(RESUME) for word in sys.argv[1:]):
            NoteBatch.noted = _resumed(sys.argv[1:])
        else:
            _compose(sys.argv[1:])
        if NoteBatch.noted:
            _run(NoteBatch.noted)
    except (HydraException, OmegaConfBaseException) as error:
        code = complain(f"{one_line(error)}; `replay --cfg job` shows every setting, `replay --help` every choice")
    except RecordError as error:
        code = complain(error)
    except BrokenPipeError:  # who read what --help prints has gone
        code = 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    finally:
        found = finish(NoteBatch.noted) if NoteBatch.noted else 0
        signal.signal(signal.SIGTERM, previous)
        _flush()
    raise SystemExit(found if code is None else code)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it ends


def _compose(words: Sequence[str]) -> None:
    """Let Hydra note the runs; what it does not refuse in one line is refused here."""
    try:
        job()
    except (BrokenPipeError, HydraException):  # some of Hydra's are OSErrors
        raise
    except OSError as error:
        place = error.filename or (NoteBatch.noted.folder if NoteBatch.noted else "results")
        raise RecordError(
            f"results: {place} can't be written ({error.strerror}); set results=<a folder that can be written>"
        ) from error
    except ValueError as error:
        if not str(error).startswith("Config group override"):
            raise
        raise RecordError(misnamed_choice(words) or f"{error}; `replay --help` shows every choice") from error


def _resumed(words: Sequence[str]) -> Batch:
    """The batch that ``resume=<folder>`` names; other settings typed beside it replace the stored ones."""
    if flags := [word for word in words if word.startswith("-")]:
        raise RecordError(f"{flags[0]} does not go with resume=<folder>; leave it out")
    (folder,) = [word.removeprefix(RESUME) for word in words if word.startswith(RESUME)][-1:]
    typed = [word for word in words if not word.startswith(RESUME)]
    changes = OmegaConf.from_dotlist(typed)
    batch = interrupted(Path(folder), ["replay", *words])
    groups = [key for key, value in batch.rows[0].config.items() if isinstance(value, dict)]
    for word in typed:
        if word.startswith(("+", "~")) or word.partition("=")[0] in groups:
            raise RecordError(
                f"{word} does not go with resume=<folder>, whose choices of {', '.join(groups)} stay; leave it out, "
                "start a new run, or change a setting within, such as engine.start_timeout_s=<seconds>"
            )
    rows = []
    for row in batch.rows:
        composed = OmegaConf.merge(row.config, changes)
        assert isinstance(composed, DictConfig)
        config = OmegaConf.to_container(composed, resolve=True)
        if unknown := hidden(config):
            raise RecordError(f"{row.folder}: {unknown[0]} was not stored, as a secret; add {unknown[0]}=<value>")
        checked(composed)
        rows.append(Row(folder=row.folder, config=config, command=row.command))  # type: ignore[arg-type]
    batch.rows = rows
    if "report" in changes:
        batch.report = changes.report
    return batch


def _run(batch: Batch) -> None:
    """Replay every row that is not finished yet, one after another."""
    # Imported here so that --help and --cfg answer at once.
    from engines.base import EngineError
    from replay.order import check, ordered_runs
    from replay.resume import finished

    drop_hydras(batch)
    target, batch.report = batch.report, None
    if target and target != Config.report:  # which is there, and loads much that this process has no use for now
        reporter(target)  # a wrong name is said now, not after the runs
    batch.report = target
    configs = {row.folder: checked(OmegaConf.create(dict(row.config))) for row in batch.rows}
    for row in batch.rows:
        if wrong := unused_option(row.command[1:], configs[row.folder].engine):
            raise RecordError(wrong)
    if not batch.resume and batch.rows:
        order = configs[batch.rows[0].folder].order
        try:
            check(order)
        except EngineError as error:
            raise SystemExit(complain(error)) from None
        batch.rows = ordered_runs(batch.rows, [configs[row.folder].repeat for row in batch.rows], order)
        batch.write()
        if order.engines != "given" and len(batch.rows) > 1:
            print("order    " + " · ".join(row.folder.name for row in batch.rows), file=sys.stderr)
    left = [row for row in batch.rows if not finished(row.folder)]
    if batch.resume:
        print(f"resume   {len(batch.rows) - len(left)} of {len(batch.rows)} runs are complete", file=sys.stderr)
    codes = [_run_row(batch, row, configs[row.folder], number, len(left)) for number, row in enumerate(left)]
    if batch.resume and codes and set(codes) == {USAGE}:
        batch.report = None  # every run is as it was
    if not batch.sweep and any(codes):
        raise SystemExit(max(codes))


def _run_row(batch: Batch, row: Row, config: Config, number: int, runs: int) -> int:
    """The exit code that this run alone would give."""
    from engines.base import EngineError
    from replay.progress import Progress
    from replay.resume import RefusedError
    from replay.run import Run, execute
    from workloads.session import WorkloadError

    try:
        row.folder.mkdir(parents=True, exist_ok=True)
        run = Run(
            engine=config.engine,
            workload=config.workload,
            model=config.model,
            folder=row.folder,
            repeat=config.repeat,
            retries=config.retries,
            on_failure=config.on_failure,
            number=number,
            runs=runs,
            telemetry=config.telemetry,
            arrival=config.arrival,
            order=config.order,
            pressure=config.pressure,
            resume=batch.resume,
            config=row.config,
            command=row.command,
        )
        with Progress() as progress:
            execute(run, progress)
    except (WorkloadError, EngineError, RecordError, OSError) as error:
        complain(f"{config.engine.name}: {error}" if batch.sweep else error)
        # What fails before the first turn, and what no engine can help, is the user's to correct.
        engines = isinstance(error, EngineError) and not isinstance(error, RefusedError)
        return FAILED if engines and has_turns(row.folder) else USAGE
    return 0


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
