"""The checked schema of a run (Hydra).

OmegaConf takes plain dataclasses only: no frozen ones nested in others, no ``Literal``, no tuples. So the groups are
plain dataclasses, each kept beside the code that reads it, and everything built from them is frozen.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import MISSING, DictConfig, OmegaConf

from engines.settings import EngineSettings
from replay.batch import Batch
from replay.model import ModelSettings
from replay.order import OrderSettings
from replay.pacing import ArrivalSettings
from replay.pressure import PressureSettings
from replay.telemetry.settings import TelemetrySettings
from workloads.settings import WorkloadSettings

CONF = Path(__file__).parents[1] / "conf"


@dataclass
class Config:
    """One run: one engine replays one workload."""

    engine: EngineSettings = MISSING
    workload: WorkloadSettings = MISSING
    model: ModelSettings = MISSING
    name: str = "replay"
    """Results go to ``<results>/<name>/<time>``. (``experiment`` is the group of ready-made configurations.)"""
    results: str = "results"
    repeat: int = 0
    """Tells repeats of one run apart: ``replay -m repeat=0,1,2``."""
    retries: int = 1
    """How often a failed session is tried again, from its first turn."""
    on_failure: str = "continue"
    """After a session that still fails: ``continue`` with the next one, or ``stop``."""
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    arrival: ArrivalSettings = MISSING
    order: OrderSettings = field(default_factory=OrderSettings)
    pressure: PressureSettings = MISSING
    resume: str | None = None
    """A folder whose runs are gone on with; their configuration comes from there."""
    launch: str | None = None
    """Short for ``engine.launch``: ``process``, ``container`` or ``attach``."""
    report: str | None = "analysis.report.write_report"
    """Called with the finished folder; null for none."""


def checked(composed: DictConfig) -> Config:
    """The configuration as objects. Hydra lets ``+engine.colour=red`` through; here it is refused.

    Raises:
        OmegaConfBaseException: an unknown key, a missing value, a value of another type.
    """
    config: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.to_container(composed)))
    assert isinstance(config, Config)
    if config.launch:
        config.engine.launch = config.launch
    return config


def row_folder(engine: str, varying: str) -> str:
    """The folder of one run of a sweep: the engine, and what else varies: ``llamacpp,repeat=1``."""
    others = [part for part in varying.split(",") if part and part.partition("=")[0].lstrip("+") != "engine"]
    return re.sub(r"[^\w.,=+-]+", "-", ",".join([engine, *others]))[:150]


def misnamed_choice(words: Sequence[str]) -> str | None:
    """What is wrong with ``engine=7``: a group's choice has a name. None when no word is like that."""
    typed = [word for word in words if "=" in word and not word.startswith("-")]
    for override in OverridesParser.create().parse_overrides(typed):
        group = CONF / override.key_or_group
        if group.is_dir() and not isinstance(override.value(), str | list | dict):
            names = ", ".join(sorted(path.stem for path in group.glob("*.yaml")))
            return f"{override.input_line} names no {override.key_or_group}; choose one of {names}"
    return None


class NoteBatch(Callback):
    """Hydra tells a callback what it is about to do; the command line needs to know after the jobs, failed or not."""

    noted: ClassVar[Batch | None] = None

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        folder = Path(config.hydra.run.dir)
        # The report lies above the run folder, as in a sweep, unless something else may lie there too.
        NoteBatch.noted = Batch(folder=folder if folder.parent.exists() else folder.parent, report=config.report)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        parameters = config.hydra.sweeper.get("params") or {}
        lines = [f"{key}={value}" for key, value in parameters.items()]
        overrides = {
            override.key_or_group: override
            for override in OverridesParser.create().parse_overrides(lines + list(config.hydra.overrides.task))
        }
        fixed = [key for key, override in overrides.items() if not override.is_sweep_override()]
        # Every run of the sweep composes its configuration anew and takes these along: a folder is named for what
        # varies, not for what all runs share.
        config.hydra.overrides.hydra.append(f"hydra.job.config.override_dirname.exclude_keys={fixed}")
        NoteBatch.noted = Batch(folder=Path(config.hydra.sweep.dir), report=config.report, sweep=True)


def register() -> None:
    """Make the schema and the folder names known to Hydra."""
    ConfigStore.instance().store(name="schema", node=Config)
    OmegaConf.register_new_resolver("row_folder", row_folder, replace=True)
