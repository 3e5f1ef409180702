"""A run in a process that a launcher started, on this host or another."""

import base64
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import orjson
import psutil

from replay.batch import BATCH_FILE, Row
from replay.bring_home import packed, unpack
from replay.job import survived
from replay.progress import Progress
from replay.record import write_json

JOB_FILE, LOG_FILE = "job.json", "job.log"
WAITING, RUNNING, ENDED = "waiting", "running", "ended"
THREADS = tuple(f"{name}_NUM_THREADS" for name in ("OMP", "MKL", "OPENBLAS", "BLIS", "NUMEXPR", "NUMBA", "VECLIB"))
GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a launcher carries to where the run is to be."""

    row: Row
    number: int
    runs: int
    resume: bool
    launcher: str
    attempt: int
    """0 for the first time that a launcher is given it."""
    home: Path
    """The sweep's folder, where the command was typed."""
    home_id: str
    cwd: Path
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What an earlier command left of the run, for a host that does not see ``home``."""

    def text(self) -> str:
        """As one word, which passes through Hydra unread."""
        return base64.b64encode(pickle.dumps(self)).decode()

    @staticmethod
    def of(text: str) -> "Job":
        # From who started this process.
        job = pickle.loads(base64.b64decode(text))  # noqa: S301
        assert isinstance(job, Job)
        return job


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What comes back by way of the launcher; the row's files say the rest."""

    code: int
    complaint: str | None
    host: str
    files: Mapping[str, bytes] | None
    """None: they are in the row's folder."""
    left: tuple[str, ...] = ()
    """Files that are too large to come home, and stay on ``host``."""


def work(job: Job) -> Returned:
    """Run it in this process, quietly: what is said goes to ``job.log`` beside the records.

    A SIGTERM stops the run, which then says ``interrupted``, and not this process: it still has to say so.
    """
    with _terminable(), _without_launchers_limits(job.launcher), _inside(job.cwd):
        shared = job.row.config.get("scratch") is None and _sees_home(job)
        folder = job.row.folder if shared else _own_folder(job)
        folder.mkdir(parents=True, exist_ok=True)
        if not shared:
            unpack(job.files, folder)
        note = _Note(folder / JOB_FILE, job, shared)
        with _output_to(folder / LOG_FILE) as log, Progress(log) as progress:
            note.write(WAITING)
            try:
                ended = survived(
                    replace(job.row, folder=folder),
                    progress,
                    number=job.number,
                    runs=job.runs,
                    resume=job.resume,
                    began=lambda: note.write(RUNNING),
                )
                code, complaint = ended.code, ended.complaint
            except KeyboardInterrupt:
                code, complaint = 128 + signal.SIGINT, "stopped by Ctrl-C"
            except SystemExit as stop:
                code, complaint = stop.code if isinstance(stop.code, int) else 1, "stopped by a signal"
            if complaint:
                print(f"replay: {complaint}", file=log, flush=True)
            note.write(ENDED)
        if shared:
            return Returned(code=code, complaint=complaint, host=note.host, files=None)
        files, left = packed(folder)
        if not left:
            shutil.rmtree(folder.parent, ignore_errors=True)
        return Returned(
            code=code,
            complaint=complaint,
            host=note.host,
            files=files,
            left=tuple(str(folder / name) for name in left),
        )


class _Note:
    """``job.json``: who has the run, so that who gave it out can see, and stop it."""

    def __init__(self, path: Path, job: Job, shared: bool) -> None:
        self._path = path
        self.host = socket.gethostname()
        self._about = {
            "launcher": job.launcher,
            "attempt": job.attempt,
            "batch": job.home_id,
            "host": self.host,
            "node": _node(),
            "pid": os.getpid(),
            "started_s": psutil.Process().create_time(),
            "in_home": shared,
        }

    def write(self, status: str) -> None:
        write_json(self._path, self._about | {"status": status})


def read_note(folder: Path) -> dict[str, Any] | None:
    """What ``job.json`` says; None where there is none, or not one that can be read."""
    try:
        found = orjson.loads((folder / JOB_FILE).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    return (
        found if isinstance(found, dict) and {"batch", "attempt", "status", "pid", "host"} <= found.keys() else None
    )


def _node() -> str | None:
    """Ray's name of this node: two may be on one host."""
    ray: Any = sys.modules.get("ray")
    return str(ray.get_runtime_context().get_node_id()) if ray and ray.is_initialized() else None


def _sees_home(job: Job) -> bool:
    try:
        return bool(orjson.loads((job.home / BATCH_FILE).read_bytes())["id"] == job.home_id)
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return False


def _own_folder(job: Job) -> Path:
    scratch = job.row.config.get("scratch")
    base = Path(str(scratch or tempfile.gettempdir())).expanduser()
    base.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="ostinato-", dir=base)) / job.row.folder.name


@contextmanager
def _terminable() -> Iterator[None]:
    """A launcher's own handler would let a SIGTERM pass, or end the process in the middle of a turn."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


@contextmanager
def _without_launchers_limits(launcher: str) -> Iterator[None]:
    """joblib and Ray give their workers one or a few threads, and Ray no GPU, by variables that an engine inherits.

    What the process that started this one did not have itself is taken away.
    """
    names = [*THREADS, GPUS] if launcher.startswith("ray") else [*THREADS] if launcher == "joblib" else []
    above: Mapping[str, str] = {}
    with suppress(psutil.Error, AttributeError):
        parent = psutil.Process().parent()
        above = parent.environ() if parent else {}
    before = {name: os.environ[name] for name in names if name in os.environ and name not in above}
    for name in before:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(before)


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Paths in a configuration are relative to where the command was typed; another host need not have that."""
    before = Path.cwd()
    with suppress(OSError):
        os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _output_to(path: Path) -> Iterator[Any]:
    """What libraries and the interpreter say, too: many jobs share one terminal."""
    kept = os.dup(1), os.dup(2)
    with path.open("a", buffering=1, encoding="utf-8") as log:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            yield log
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, descriptor in enumerate(kept, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)
