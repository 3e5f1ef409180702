"""Gives a sweep's runs to a Hydra launcher (joblib, Ray, submitit), one by one, so that each can end as it likes.

A launcher that is given all of them returns nothing when one of its workers is killed. Here a few threads hand out
one run each, in the sweep's order, and take what comes back; how many are out at once is the launcher's to say.
"""

import importlib.util
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra._internal.callbacks import Callbacks
from hydra.conf import HydraConf
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from replay import ray_cluster
from replay.batch import Batch, Row
from replay.bring_home import packed, unpack
from replay.host_lock import OFF
from replay.launched import WAITING, Job, Returned, read_note, work
from replay.record import RecordError
from replay.rows import has_turns

NEEDS = {"JoblibLauncher": "joblib", "RayLauncher": "ray", "LocalLauncher": "submitit", "SlurmLauncher": "submitit"}
"""Plugin class → the package that does its work."""
MOST = 256
"""Runs that are handed out at once; a thread waits for each."""
ATTEMPTS = 3
"""A run that never began may be given out so often: joblib ends all its workers when one is killed."""


def kind(launcher: Mapping[str, Any]) -> str:
    """``RayLauncher``, ``SlurmLauncher`` …"""
    return str(launcher["_target_"]).rpartition(".")[2]


def check(launcher: Mapping[str, Any]) -> None:
    """Raises RecordError when what the launcher needs is not installed."""
    module = str(launcher["_target_"]).rpartition(".")[0]
    wanted = (module, NEEDS.get(kind(launcher), "hydra"))
    if not all(_installed(name) for name in wanted):
        name = module.split(".")[1].replace("_", "-")
        raise RecordError(f"hydra/launcher needs {name}; run: pip install 'ostinato-replay[sweeps]'")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # what it is in is not there either
        return False


class RowLoader:
    """Stands where Hydra's launchers expect what composes a configuration: ours is composed, and one word."""

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:  # noqa: ARG002
        (text,) = sweep_overrides
        hydra = OmegaConf.structured(HydraConf)
        # A folder that every host has: the run's own is made by the run.
        hydra.sweep.dir, hydra.sweep.subdir = ".", "."
        hydra.output_subdir = None
        hydra.job.chdir, hydra.job.name = False, "replay"
        hydra.hydra_logging = hydra.job_logging = {"version": 1, "root": None}
        hydra.overrides.task = []
        return OmegaConf.create({"hydra": hydra, "job": text})


def task(config: DictConfig) -> Returned:
    """What a launcher calls in its worker."""
    return work(Job.of(config.job))


@dataclass
class Launching:
    """The runs of a batch on their way."""

    batch: Batch
    rows: list[Row]
    settings: Mapping[str, Any]
    """Of the launcher, resolved."""
    ended: "queue.Queue[tuple[Row, Returned | BaseException]]" = field(default_factory=queue.Queue)
    _out: dict[Path, Row] = field(default_factory=dict)
    _waiting: "queue.SimpleQueue[tuple[int, Row]]" = field(default_factory=queue.SimpleQueue)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _ray: ray_cluster.Submitted | None = None

    @property
    def kind(self) -> str:
        return kind(self.settings)

    def start(self) -> None:
        """Raises RecordError when there is nothing to run on."""
        settings = dict(self.settings)
        width = self.width(settings)
        launcher = _launcher(self.batch.folder, settings)
        for number, row in enumerate(self.rows):
            self._waiting.put((number, row))
        for number in range(min(width, MOST, len(self.rows))):
            thread = threading.Thread(target=self._hand_out, args=(launcher(),), name=f"launch {number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def width(self, settings: dict[str, Any]) -> int:
        """How many may be out at once; ``settings`` are made to fit."""
        if self.kind == "RayLauncher":
            hosts = ray_cluster.connect(settings["ray"])
            self._ray = ray_cluster.Submitted()
            return 2 * hosts  # the next one is there when one ends
        # With the lock, a second run of this machine would only wait: it would load beside the one that is measured,
        # and joblib, which ends all its workers when one is killed, would end it just when it had begun.
        alone = any(row.config.get("lock") != OFF for row in self.rows)
        if self.kind == "JoblibLauncher":
            jobs = int(settings.get("n_jobs") or 1)
            width = jobs if jobs > 0 else max(1, (os.cpu_count() or 1) + 1 + jobs)
            settings["n_jobs"] = max(2, width)  # with one, joblib would run it in this process
            return 1 if alone else width
        settings["submitit_folder"] = str(self.batch.folder / settings["submitit_folder"])
        if self.kind == "LocalLauncher":
            return 1 if alone else max(1, os.cpu_count() or 1)
        if shutil.which("sbatch") is None:
            raise RecordError("hydra/launcher=submitit_slurm: there is no sbatch here; run it where there is")
        return int(settings.get("array_parallelism") or MOST)

    @property
    def alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def given_out(self) -> list[Row]:
        """Those that are with the launcher now."""
        return list(self._out.values())

    def stop(self) -> None:
        """Hand out nothing more; those that are out come back when they end."""
        self._stopped.set()

    def cancel(self, *, force: bool = False) -> None:
        """Ask the launcher to stop those that are out, where it can."""
        if self._ray:
            self._ray.cancel(force=force)
        elif self.kind == "SlurmLauncher":
            ids = [path.name for path in (self.batch.folder / ".submitit").glob("[0-9]*")]
            with suppress(OSError):
                subprocess.run(["scancel", *ids], check=False, capture_output=True)  # noqa: S603, S607

    def close(self) -> None:
        if self._ray and not self.alive:  # Ray aborts the process when a thread still waits for it
            ray_cluster.disconnect()

    def _hand_out(self, launcher: Any) -> None:
        while not self._stopped.is_set():
            try:
                number, row = self._waiting.get_nowait()
            except queue.Empty:
                return
            self._out[row.folder] = row
            try:
                self.ended.put((row, self._once(launcher, row, number)))
            finally:
                del self._out[row.folder]

    def _once(self, launcher: Any, row: Row, number: int) -> Returned | BaseException:
        for attempt in range(ATTEMPTS):
            try:
                returned = self._launch(launcher, self._job(row, number, attempt).text(), number)
                found: Returned = returned.return_value
                if found.files is not None:
                    unpack(found.files, row.folder)
                return found
            # Each launcher has errors of its own for a worker that is gone.
            except BaseException as error:  # noqa: BLE001
                failure = error
                had_the_machine = began(row.folder, self.batch.id, attempt)
                if had_the_machine is None and self.kind != "RayLauncher" and row.config.get("scratch") is None:
                    had_the_machine = False  # it would have left its note here
                if self._stopped.is_set() or had_the_machine is not False:
                    break
        return failure

    def _launch(self, launcher: Any, text: str, number: int) -> Any:
        if self._ray:
            config = launcher.hydra_context.config_loader.load_sweep_config(launcher.config, [text])
            return self._ray.run(launcher, config, Singleton.get_state())
        (returned,) = launcher.launch([[text]], number)
        return returned

    def _job(self, row: Row, number: int, attempt: int) -> Job:
        resumed = self.batch.resume and has_turns(row.folder)
        return Job(
            row=row,
            number=number,
            runs=len(self.rows),
            resume=self.batch.resume,
            launcher={"JoblibLauncher": "joblib", "RayLauncher": "ray"}.get(self.kind, "submitit"),
            attempt=attempt,
            home=self.batch.folder,
            home_id=self.batch.id,
            cwd=Path.cwd(),
            files=packed(row.folder)[0] if resumed else {},
        )


def began(folder: Path, home_id: str, attempt: int) -> bool | None:
    """Whether the run had the machine, in this attempt; None when its note is not here to tell."""
    note = read_note(folder)
    if note is None or (note["batch"], note["attempt"]) != (home_id, attempt):
        return None
    return bool(note["status"] != WAITING)


def _launcher(folder: Path, settings: Mapping[str, Any]) -> Callable[[], Any]:
    """Hydra's launcher, one for each thread."""
    logging = {"version": 1, "root": None}
    hydra = {"launcher": settings, "sweep": {"dir": str(folder)}, "hydra_logging": logging, "verbose": False}
    config = OmegaConf.create({"hydra": {**hydra, "job": {"name": "replay"}}})
    context = HydraContext(config_loader=RowLoader(), callbacks=Callbacks())  # type: ignore[arg-type]
    plugins = Plugins.instance()
    return lambda: plugins.instantiate_launcher(hydra_context=context, task_function=task, config=config)
