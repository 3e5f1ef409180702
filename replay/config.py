"""The checked schema of a run (Hydra).

OmegaConf takes plain dataclasses only: no frozen ones nested in others, no ``Literal``, no tuples. So the groups are
plain dataclasses, each kept beside the code that reads it, and everything built from them is frozen.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from engines.hardware import HardwareSettings
from engines.placeholders import used_names
from engines.settings import EngineSettings, as_launched
from replay.batch import Batch
from replay.gate import GateSettings
from replay.model import ModelSettings
from replay.order import OrderSettings
from replay.pacing import ArrivalSettings
from replay.pressure import PressureSettings
from replay.record import RecordError
from replay.telemetry.settings import TelemetrySettings
from replay.tune import TuneSettings
from workloads.settings import WorkloadSettings

CONF = Path(__file__).parents[1] / "conf"
SUBDIR = "${row_folder:${engine.name},${hydra.job.override_dirname}}"
"""Of a sweep's run, as ``conf/config.yaml`` has it."""


@dataclass
class Config:
    """One run: one engine replays one workload."""

    engine: EngineSettings = MISSING
    workload: WorkloadSettings = MISSING
    model: ModelSettings = MISSING
    hardware: HardwareSettings = field(default_factory=HardwareSettings)
    """What the files of ``engine`` take their threads, cores and GPUs from."""
    name: str = "replay"
    """Results go to ``<results>/<name>/<time>``. (``experiment`` is the group of ready-made configurations.)"""
    results: str = "results"
    repeat: int = 0
    """Tells repeats of one run apart: ``replay -m repeat=0,1,2``."""
    retries: int = 1
    """How often a failed session is tried again, from its first turn."""
    on_failure: str = "continue"
    """After a session that still fails: ``continue`` with the next one, or ``stop``."""
    on_noise: str = "fail"
    """Where other programs on the machine made the times of a sweep's run wrong: ``fail`` ends the command with 1,
    ``warn`` only says so."""
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    arrival: ArrivalSettings = MISSING
    order: OrderSettings = field(default_factory=OrderSettings)
    pressure: PressureSettings = MISSING
    tune: TuneSettings = field(default_factory=TuneSettings)
    """What a sweep is to choose, on development sessions."""
    gate: GateSettings = field(default_factory=GateSettings)
    """Which of a sweep's runs is held against which; its verdict is then the exit code."""
    resume: str | None = None
    """A folder whose runs are gone on with; their configuration comes from there."""
    lock: str = "wait"
    """One benchmark a machine: ``wait`` until it is free, ``fail`` when it is not, or ``off``."""
    scratch: str | None = None
    """Where a run that a launcher started writes while it runs: a folder of its own host, from which its files come
    home at the end. None: the sweep's folder, where its host sees it."""
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
    config.engine = as_launched(config.engine)
    return config


def resolved(config: Mapping[str, Any]) -> tuple[Config, dict[str, Any]]:
    """A stored configuration as objects and as it reads here: with this machine's cores where it says so.

    Raises:
        RecordError: it can't be resolved.
    """
    register()
    try:
        composed = OmegaConf.create(dict(config))
        settings = checked(composed)
        plain = OmegaConf.to_container(composed, resolve=True)
    except (OmegaConfBaseException, ComposeError) as error:
        raise RecordError(f"{one_line(error)}; `replay --cfg job` shows every setting") from error
    return settings, plain  # type: ignore[return-value]


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
            names = ", ".join(choices(override.key_or_group))
            return f"{override.input_line} names no {override.key_or_group}; choose one of {names}"
    return None


def unused_option(words: Sequence[str], *engines: EngineSettings) -> str | None:
    """What is wrong with a typed ``engine.options.…`` that nothing of any of the engines asks for; None when all are
    used: in a sweep over engines an option may be for one of them."""
    asked = {name for engine in engines for name in used_names(engine)}
    typed = [word for word in words if word.lstrip("+").startswith("engine.options.")]
    for override in OverridesParser.create().parse_overrides(typed):
        name = override.key_or_group.removeprefix("engine.options.")
        if name not in asked:
            known = ", ".join(sorted(asked & {option for engine in engines for option in engine.options})) or "none"
            names = ", ".join(dict.fromkeys(engine.name for engine in engines))
            return f"engine.options.{name}: nothing of engine {names} uses it; its options are {known}"
    return None


def chosen_launcher(config: DictConfig) -> dict[str, Any] | None:
    """What is to start a sweep's runs; None for this process, one after another."""
    launcher: Any = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    return None if launcher["_target_"].endswith(".BasicLauncher") else launcher


class SweepNoted(BaseException):
    """Leaves Hydra with the sweep noted: its runs are composed by ``replay.expand``. No Exception, which Hydra would
    make a warning of."""


class NoteBatch(Callback):
    """Hydra tells a callback what it is about to do; the command line needs to know before and after the jobs."""

    noted: ClassVar[Batch | None] = None
    sweep: ClassVar[tuple[DictConfig, ConfigLoader] | None] = None
    """The sweep's own configuration, and what makes that of each run of it."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        folder = Path(config.hydra.run.dir)
        # The report lies above the run folder, as in a sweep, unless something else may lie there too.
        NoteBatch.noted = Batch(folder=folder if folder.parent.exists() else folder.parent, report=config.report)

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        NoteBatch.noted = Batch(folder=Path(config.hydra.sweep.dir), report=config.report, sweep=True)
        NoteBatch.sweep = config, GlobalHydra.instance().config_loader()
        raise SweepNoted


class ComposeError(Exception):
    """A configuration that can't be composed as asked, in one line."""


def composed(overrides: Sequence[str]) -> Config:
    """The configuration of one run, for a command that is none of Hydra's own.

    Raises:
        ComposeError: what can't be composed as asked.
    """
    register()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = checked(compose("config", list(overrides)))
    except (HydraException, OmegaConfBaseException) as error:
        raise ComposeError(f"{one_line(error)}; `replay --cfg job` shows every setting") from error
    except ValueError as error:
        raise ComposeError(misnamed_choice(overrides) or str(error)) from error
    if wrong := unused_option(overrides, config.engine):
        raise ComposeError(wrong)
    return config


def one_line(error: BaseException) -> str:
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


def each_engine(overrides: Sequence[str]) -> dict[str, Config]:
    """The configuration with each engine there is: composed once where no word is about the engine itself.

    Raises:
        ComposeError: as ``composed``.
    """
    names = choices("engine")
    if any("engine" in word.partition("=")[0] for word in overrides):
        return {name: composed([f"engine={name}", *overrides]) for name in names}
    first = composed(overrides)
    found = {}
    for name in names:
        settings = OmegaConf.merge(OmegaConf.structured(EngineSettings), OmegaConf.load(CONF / f"engine/{name}.yaml"))
        tree: Any = OmegaConf.to_object(OmegaConf.create({"engine": settings, "hardware": asdict(first.hardware)}))
        engine = replace(tree["engine"], launch=first.launch or tree["engine"].launch)
        found[name] = replace(first, engine=as_launched(engine))
    return found


def choices(group: str) -> list[str]:
    """Names of the files of a group, those in folders below it left out."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def arguments(command: Sequence[str]) -> list[str]:
    """A command without its program, for an image whose entry point is that program."""
    return list(command)[1:]


def register() -> None:
    """Make the schema, the folder names, and what files in ``conf/`` compute known to Hydra."""
    ConfigStore.instance().store(name="schema", node=Config)
    OmegaConf.register_new_resolver("row_folder", row_folder, replace=True)
    OmegaConf.register_new_resolver("usable_cores", usable_cores, replace=True)
    OmegaConf.register_new_resolver("arguments", arguments, replace=True)
