"""Checks on what one engine needs, without starting it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from engines.base import EngineError
from engines.binary import find
from engines.forcing.compiled import check_dynamic
from engines.port import check_port_is_free
from engines.settings import EngineSettings
from engines.state import check_state
from replay.doctor.finding import NOT_RUN, Finding
from replay.model import ModelSettings
from replay.record import RESULT_FILE, RecordError, read_result

Gpus = Sequence[tuple[str, int, int]]
READ_AT_MOST = 200
"""Results that are looked at, newest first."""


def wants_gpu(engine: EngineSettings) -> bool:
    return engine.needs_gpu or (engine.launch == "container" and engine.container.gpus is not None)


def engine_findings(
    engine: EngineSettings, model: ModelSettings, *, results: Path, machine: str | None, gpus: Gpus
) -> list[Finding]:
    """What stands in the way of a start, in the order in which a start would meet it."""
    return [
        *_gpu(engine, results, machine, gpus),
        *_program(engine),
        *_port(engine),
        *_state(engine),
        *_model(engine, model, gpus),
    ]


def _gpu(engine: EngineSettings, results: Path, machine: str | None, gpus: Gpus) -> Iterator[Finding]:
    if not wants_gpu(engine):
        return
    if not gpus:
        yield Finding(
            check="GPU",
            state="failed",
            found="none",
            advice="install NVIDIA's driver, or run on a machine with a GPU",
        )
    ran = recorded(results, engine.name, machine)
    yield Finding(
        check="runs of it on this machine", state="ok" if ran else NOT_RUN,
        found=ran or f"none recorded below {results}",
        advice="" if ran else "nothing of it is known to work here before a complete run",
    )  # fmt: skip


def recorded(results: Path, engine: str, machine: str | None) -> str | None:
    """The newest complete run of the engine with a GPU of this machine, below a folder of results."""
    files = sorted(results.glob(f"**/{RESULT_FILE}"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files[:READ_AT_MOST]:
        try:
            result: dict[str, Any] = read_result(path.parent)
        except RecordError:
            continue
        facts = result.get("environment") or {}
        same = machine is not None and facts.get("machine") == machine
        if result["engine"]["name"] == engine and result["status"] == "complete" and facts.get("gpus") and same:
            return str(path.parent)
    return None


def _program(engine: EngineSettings) -> Iterator[Finding]:
    if engine.launch == "attach":
        found = engine.url or "engine.url is not set"
        yield Finding(
            check="server", state="ok" if engine.url else "failed", found=found,
            advice="" if engine.url else "set engine.url to the running server's address",
        )  # fmt: skip
    elif engine.launch == "container":
        yield from _image(engine)
    elif engine.command:
        yield _binary(engine)
    else:
        yield Finding(check="program", state="failed", found="engine.command is empty", advice="set engine.command")


def _image(engine: EngineSettings) -> Iterator[Finding]:
    from engines.container.daemon import Daemon  # the SDK takes 0.3 s to import

    try:
        daemon = Daemon(engine)
    except EngineError as error:
        yield Finding(check="Docker", state="failed", found="no daemon answers", advice=str(error))
        return
    try:
        yield Finding(check="Docker", state="ok", found=f"version {daemon.version}")
        if engine.container.gpus is not None:
            known = daemon.gives_gpus()
            yield Finding(
                check="Docker's GPU runtime", state="ok" if known else "failed",
                found="there" if known else "missing",
                advice="" if known else "install nvidia-container-toolkit, run `nvidia-ctk runtime configure "
                "--runtime=docker`, restart Docker",
            )  # fmt: skip
        if not engine.container.image:
            yield Finding(
                check="image", state="failed", found="none named", advice="set engine.container.image (see its file)"
            )
            return
        try:
            yield Finding(check="image", state="ok", found=str(daemon.image()["digest"])[:19])
        except EngineError as error:
            yield Finding(check="image", state="failed", found=engine.container.image, advice=str(error))
    finally:
        daemon.close()


def _binary(engine: EngineSettings) -> Finding:
    program = engine.command[0]
    if program == "{python}":
        return Finding(check="program", state="ok", found="this Python")
    name = engine.binary if program == "{binary}" else program
    path = find(name) if name else None
    if path is None:
        how = "run `make llama-server`, or set" if engine.dialect == "llamacpp" else "install it, or set"
        return Finding(
            check="program", state="failed", found=f"there is no {name or 'engine.binary'}",
            advice=f"{how} engine.binary, or launch=container",
        )  # fmt: skip
    if engine.forcing == "shim":
        try:
            check_dynamic(path, engine.env)
        except EngineError as error:
            return Finding(check="program", state="failed", found=str(path), advice=str(error))
    return Finding(check="program", state="ok", found=str(path))


def _port(engine: EngineSettings) -> Iterator[Finding]:
    if engine.launch == "attach" or not engine.port:
        return
    try:
        check_port_is_free(engine.port)
    except EngineError as error:
        yield Finding(check="port", state="failed", found=str(engine.port), advice=str(error))
    else:
        yield Finding(check="port", state="ok", found=f"{engine.port} is free")


def _state(engine: EngineSettings) -> Iterator[Finding]:
    try:
        check_state(engine)
    except EngineError as error:
        yield Finding(check="state", state="failed", found=engine.state, advice=str(error))


def _model(engine: EngineSettings, model: ModelSettings, gpus: Gpus) -> Iterator[Finding]:
    if engine.launch == "attach" or engine.model_format == "none":
        return
    named = {"gguf": model.gguf, "safetensors": model.path}.get(engine.model_format)
    setting = "model.gguf" if engine.model_format == "gguf" else "model.path"
    if named is None:
        made = model.synthetic is not None and not (model.path or model.gguf)
        yield Finding(
            check="model", state="ok" if made else "failed",
            found=f"{model.name}, made at its first use" if made else f"{model.name}: no {engine.model_format} of it",
            advice="" if made else f"set {setting}",
        )  # fmt: skip
        return
    path = Path(named).expanduser()
    if not path.exists():
        yield Finding(check="model", state="failed", found=f"there is no {path}", advice=f"correct {setting}")
        return
    size = _bytes(path)
    yield Finding(check="model", state="ok", found=f"{path}, {size / 2**30:,.1f} GiB")
    yield from room(size, psutil.virtual_memory().available, gpus if wants_gpu(engine) else ())


def room(size: int, available: int, gpus: Gpus) -> Iterator[Finding]:
    """An engine that offloads holds on the host what its GPUs do not."""
    free = sum(free for _, free, _ in gpus) * 2**20
    enough = size <= available + free
    said = f"{size / 2**30:,.1f} GiB of model, {available / 2**30:,.1f} GiB of memory"
    said += f" and {free / 2**30:,.1f} GiB of GPU memory free" if gpus else " available"
    yield Finding(
        check="room for the model", state="ok" if enough else "failed", found=said,
        advice="" if enough else "end other programs, or take a smaller model",
    )  # fmt: skip


def _bytes(path: Path) -> int:
    """Of a folder, or of a GGUF with all its parts."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    parts = path.parent.glob(path.name.split("-00001-of-")[0] + "-*-of-*.gguf") if "-of-" in path.name else [path]
    return sum(file.stat().st_size for file in parts)
