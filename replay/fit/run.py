"""The search as a whole: workload, model, tries, and the file that keeps what was found."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.base import EngineError
from engines.settings import EngineSettings
from replay.fit.search import search
from replay.fit.settings import FitSettings
from replay.fit.trial import Longest, Try, attempt, longest
from replay.inputs import fits_context, fits_vocabulary
from replay.model import ModelSettings, prepare
from replay.progress import Progress
from replay.stopping import until_terminated
from workloads.load import load
from workloads.session import WorkloadError
from workloads.settings import WorkloadSettings
from workloads.split import HELD_OUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    value: int | None
    """None: not even the value that asks for least memory passes."""
    tries: Sequence[Try]
    longest: Longest
    workload: str
    workload_hash: str


def find(
    engine: EngineSettings,
    model_settings: ModelSettings,
    workload_settings: WorkloadSettings,
    fit: FitSettings,
    folder: Path,
    progress: Progress,
    tell: Callable[[Try], None],
) -> Fitted:
    """Search the value.

    Args:
        folder: each try's log goes into ``<folder>/<option>=<value>``.
        tell: called with each try when it is over.

    Raises:
        EngineError, WorkloadError: what can't be searched, or fails whatever the value.
    """
    progress.step("reading the model and the workload")
    model = prepare(model_settings, "none" if engine.launch == "attach" else engine.model_format, progress.show)
    workload = load(workload_settings, model.tokenizer)
    if engine.launch == "attach":
        raise EngineError(
            "engine.launch=attach: a server that somebody else starts can't be sized; set process or container"
        )
    if workload.split == HELD_OUT:
        raise WorkloadError(
            f"workload {workload.name} holds held-out sessions, and what is measured must not be tuned on; "
            "give the development sessions of the same split"
        )
    fits_context(workload, engine)
    fits_vocabulary(workload, model)
    wanted = longest(workload)
    tries: list[Try] = []

    async def passes(value: int) -> bool:
        place = folder / f"{fit.option}={value}"
        place.mkdir(parents=True, exist_ok=True)
        done = await attempt(value, engine, model, workload, wanted, fit, place, progress)
        tries.append(done)
        tell(done)
        return done.reason is None

    value = asyncio.run(until_terminated(search(fit.bounds, passes)))
    return Fitted(
        value=value, tries=tries, longest=wanted, workload=workload.name, workload_hash=workload.content_hash
    )


def override(fit: FitSettings, value: int) -> str:
    """What to type after ``replay`` to get this value."""
    text = fit.value_text(value)
    return f"engine.options.{fit.option}={text}" if text.isalnum() else f"'engine.options.{fit.option}=\"{text}\"'"


def write(path: Path, engine: EngineSettings, fit: FitSettings, fitted: Fitted, command: str) -> None:
    """A file that Hydra takes: ``replay --config-dir <above> engine=<engine> +<folder>=<name>``.

    Raises:
        EngineError: it can't be written.
    """
    assert fitted.value is not None
    lines = [
        "# @package _global_",
        f"# {command}",
        f"# {time.strftime('%Y-%m-%d %H:%M')}: {len(fitted.tries)} starts of {engine.name}; longest request: session "
        f"{fitted.longest.session_id}, turn {fitted.longest.turn}, {fitted.longest.tokens:,} tokens",
        f"# of workload {fitted.workload} ({fitted.workload_hash[:16]}). Tries:",
        *(
            f"#   {one.value}: {one.reason or 'passed'} ({one.seconds:.1f} s; {one.left.shown()})"
            for one in fitted.tries
        ),
        "engine:",
        "  options:",
        f"    {fit.option}: {json.dumps(fit.value_text(fitted.value))}",
        "",
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines))
    except OSError as error:
        raise EngineError(f"{error.filename or path}: {error.strerror}; set fit.out to another file") from error
