"""``replay``: compose the configuration, replay, say where the report is."""

import os
import signal
import sys
import warnings
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

    from replay.batch import RESUME, Batch, Row, with_hashes
    from replay.config import (
        CONF,
        Config,
        NoteBatch,
        SweepNoted,
        checked,
        misnamed_choice,
        one_line,
        register,
        unused_option,
    )
    from replay.ending import complain
    from replay.record import RecordError
    from replay.tune import refusal
except KeyboardInterrupt:  # they take half a second
    raise SystemExit(130) from None

register()


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def job(composed: DictConfig) -> None:
    """Note the one run. A sweep's are noted by ``replay.expand``."""
    job_config, batch = HydraConfig.get(), NoteBatch.noted
    assert batch is not None
    folder = Path(job_config.runtime.output_dir)
    if any(folder.iterdir()):
        raise RecordError(f"{folder}: already holds a run; choose another name=<name> or start a second later")
    batch.fresh.append(folder)
    settings, words = checked(composed), list(job_config.overrides.task)
    if wrong := refusal(settings.tune, settings.workload) or unused_option(words, settings.engine):
        raise RecordError(wrong)
    config = OmegaConf.to_container(composed)
    row = Row(folder=folder, config=config, command=["replay", *words])  # type: ignore[arg-type]
    batch.rows = with_hashes([row])


def main() -> NoReturn:
    """Exits with 0 all complete, 1 a run, session or report failed, or a sweep's run is not valid, 2 not as asked,
    130 Ctrl-C, 143 SIGTERM; with the gate's code where the configuration asks for a gate."""
    # Hydra then raises its errors instead of printing many lines.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    # Files of ours are called as the plugins' own, which fill what ours leave out and check their types.
    warnings.filterwarnings("ignore", message=r"\s*'hydra/launcher/")
    NoteBatch.noted = None
    previous = signal.signal(signal.SIGTERM, _terminate)
    code: int | None = None
    codes: dict[Path, int] = {}
    try:
        if any(word.startswith(RESUME) for word in sys.argv[1:]):
            from replay.resumed import resumed

            NoteBatch.noted = resumed(sys.argv[1:])
        else:
            _compose(sys.argv[1:])
        if NoteBatch.noted:
            _run(NoteBatch.noted, codes)
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
        found = _finish(NoteBatch.noted, codes) if NoteBatch.noted else 0
        signal.signal(signal.SIGTERM, previous)
        _flush()
    raise SystemExit(found if code is None else code)


def _finish(batch: Batch, codes: dict[Path, int]) -> int:
    # Imported here, as below, so that --help and --cfg answer at once.
    from replay.finish import finish

    return finish(batch, codes)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it ends


def _compose(words: Sequence[str]) -> None:
    """Let Hydra note the runs; what it does not refuse in one line is refused here."""
    try:
        try:
            job()
        except SweepNoted:
            _expand()
    except (BrokenPipeError, HydraException):  # some of Hydra's are OSErrors
        raise
    except OSError as error:
        place = error.filename or (NoteBatch.noted.folder if NoteBatch.noted else "results")
        raise RecordError(
            f"results: {place} can't be written ({error.strerror}); set results=<a folder that can be written>"
        ) from error
    except ValueError as error:
        if str(error).startswith("Only one of --run, --multirun, --cfg"):
            raise RecordError("--cfg shows one run's settings; leave -m out and name one value a setting") from error
        if not str(error).startswith("Config group override"):
            raise
        raise RecordError(misnamed_choice(words) or f"{error}; `replay --help` shows every choice") from error


def _expand() -> None:
    from replay.expand import expand
    from replay.launchers import check
    from replay.resumed import take_up

    batch, noted = NoteBatch.noted, NoteBatch.sweep
    assert batch is not None
    assert noted is not None
    expand(batch, *noted)
    if batch.launcher:
        check(batch.launcher)
    take_up(batch)
    batch.fresh = [row.folder for row in batch.rows if not row.folder.is_dir() or not any(row.folder.iterdir())]
    batch.folder.mkdir(parents=True, exist_ok=True)


def _run(batch: Batch, codes: dict[Path, int]) -> None:
    """Replay every row that is not finished yet."""
    from engines.base import EngineError
    from replay.finish import reporter
    from replay.order import check, ordered_runs
    from replay.sweep import left, sweep

    target, batch.report = batch.report, None
    if target and target != Config.report:  # which is there, and loads much that this process has no use for now
        reporter(target)  # a wrong name is said now, not after the runs
    batch.report = target
    if not batch.taken_up and batch.rows:
        settings = checked(OmegaConf.create(dict(batch.rows[0].config)))
        if settings.on_noise not in ("fail", "warn"):
            raise RecordError(f"on_noise={settings.on_noise} is not known; set fail or warn")
        order = settings.order
        try:
            check(order)
        except EngineError as error:
            raise RecordError(str(error)) from error
        batch.rows = ordered_runs(batch.rows, [int(row.config["repeat"]) for row in batch.rows], order)
        if order.engines != "given" and len(batch.rows) > 1:
            print("order    " + " · ".join(row.folder.name for row in batch.rows), file=sys.stderr)
    if not batch.taken_up or batch.launcher:
        batch.write()
    rows = left(batch)
    if batch.resume:
        print(f"resume   {len(batch.rows) - len(rows)} of {len(batch.rows)} runs are complete", file=sys.stderr)
    sweep(batch, rows, codes)
    if not batch.sweep and any(codes.values()):
        raise SystemExit(max(codes.values()))


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
