"""``replay``: compose the configuration, replay, say where the report is."""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import get_method
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from replay.config import CONF, Batch, NoteBatch, checked, register
from replay.record import RESULT_FILE, TURNS_FILE, RecordError, read_result

FAILED, USAGE = 1, 2
LOG_FILE = "server.log"

register()


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def job(composed: DictConfig) -> None:
    """One run; Hydra calls it once, or once for each run of a sweep."""
    # Imported here so that --help and --cfg answer at once.
    from engines.base import EngineError
    from replay.progress import Progress
    from replay.run import Run, execute
    from workloads.session import WorkloadError

    job_config = HydraConfig.get()
    sweep = job_config.mode is RunMode.MULTIRUN
    folder = Path(job_config.runtime.output_dir)
    try:
        _claim(folder)
        config = checked(composed)
        run = Run(
            engine=config.engine,
            workload=config.workload,
            model=config.model,
            folder=folder,
            repeat=config.repeat,
            retries=config.retries,
            on_failure=config.on_failure,
            number=job_config.job.num if sweep else 0,
            runs=NoteBatch.noted.runs if NoteBatch.noted else 1,
            config=OmegaConf.to_container(composed, resolve=True),  # type: ignore[arg-type]
        )
        with Progress() as progress:
            execute(run, progress)
    except (WorkloadError, EngineError, RecordError, OSError) as error:
        _complain(f"{composed.engine.name}: {error}" if sweep else error)
        if not sweep:
            # What fails before the first turn, and what no engine can help, is the user's to correct.
            raise SystemExit(FAILED if isinstance(error, EngineError) and _has_turns(folder) else USAGE) from None


def main() -> NoReturn:
    """Exits with 0 all complete, 1 a run or session failed, 2 can't be done as asked, 130 Ctrl-C, 143 SIGTERM."""
    # Hydra then raises its errors instead of printing many lines.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    NoteBatch.noted = None
    previous = signal.signal(signal.SIGTERM, _terminate)
    code: int | None = None
    try:
        job()
    except (HydraException, OmegaConfBaseException) as error:
        code = _complain(f"{_one_line(error)}; `replay --cfg job` shows every setting, `replay --help` every choice")
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    finally:
        found = _finish(NoteBatch.noted) if NoteBatch.noted else 0
        signal.signal(signal.SIGTERM, previous)
    raise SystemExit(found if code is None else code)


def _claim(folder: Path) -> None:
    """Note a run folder as this command's, which may then remove it."""
    if any(folder.iterdir()):
        raise RecordError(f"{folder}: already holds a run; choose another name=<name> or start a second later")
    if NoteBatch.noted:
        NoteBatch.noted.fresh.append(folder)


def _finish(batch: Batch) -> int:
    """Build the report from what is on disk, or leave nothing behind; return the exit code."""
    (batch.folder / "multirun.yaml").unlink(missing_ok=True)
    results = [*batch.folder.glob(RESULT_FILE), *batch.folder.glob(f"*/{RESULT_FILE}")]
    if not any(_has_turns(path.parent) for path in results):
        _leave_nothing(batch)
        return USAGE
    if batch.report:
        _report(batch.folder, batch.report)
    return FAILED if any(_failed(path.parent) for path in results) else 0


def _leave_nothing(batch: Batch) -> None:
    """Remove what was begun, but for what an engine said: its log may hold the reason."""
    for folder in batch.fresh:
        for path in folder.iterdir():
            if path.name != LOG_FILE or not path.stat().st_size:
                path.unlink()
    for folder in (*batch.fresh, *batch.made):
        with suppress(OSError):  # not empty
            folder.rmdir()


def _report(folder: Path, target: str) -> None:
    from replay.progress import Progress

    try:
        with Progress() as progress:
            progress.step("writing the report")
            page = get_method(target)(folder)
    except (RecordError, OSError) as error:
        _complain(error)
        return
    print(f"report   {page}\nsummary  {folder / 'summary.md'}")


def _has_turns(folder: Path) -> bool:
    turns = folder / TURNS_FILE
    return turns.is_file() and turns.stat().st_size > 0


def _failed(folder: Path) -> bool:
    result = read_result(folder)
    return result["status"] != "complete" or any(status != "complete" for status in result["sessions"].values())


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _one_line(error: BaseException) -> str:
    """Hydra's message, and the reason below it, without what only helps its developers."""
    noise = (
        "full_key:",
        "object_type=",
        "reference_type=",
        "Config search path",
        "provider=",
        "To append to",
        "See http",
    )
    lines = [line.strip() for line in str(error).splitlines()]
    if error.__cause__:
        lines += [line for line in str(error.__cause__).splitlines()[:1] if line not in lines]
    return "; ".join(line.rstrip(".") for line in lines if line and not line.startswith(noise)).replace(":; ", ": ")


def _complain(error: object) -> int:
    print(f"replay: {error}", file=sys.stderr)
    return USAGE


if __name__ == "__main__":
    main()
