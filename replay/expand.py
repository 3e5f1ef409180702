"""A sweep's command → its runs, each with its configuration and folder.

Hydra composes a configuration in 0.1 to 0.3 s, twice for each run of a sweep, and would need minutes for a sweep of
hundreds. Here it composes each combination of *files* (``engine=``, ``workload=`` …) once; the *values* of the other
runs with the same files are set on that, checked by its types, as Hydra itself does after it has read the files.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from replay.batch import Batch, Row, with_hashes
from replay.config import SUBDIR, Config, checked, chosen_launcher, row_folder, unused_option
from replay.record import RecordError
from replay.tune import refusal

BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
LONGEST_NAME = 150
Words = tuple[str, ...]


@dataclass
class _Composed:
    """One combination of files, with the values of the run that was made of it last."""

    config: DictConfig
    """The run's configuration, and of Hydra's own what names a folder."""
    words: Words


def expand(batch: Batch, sweep: DictConfig, loader: ConfigLoader) -> list[Config]:
    """Fill ``batch.rows``, in the order in which Hydra's basic sweeper would run them.

    Returns:
        one checked configuration of each combination of files.

    Raises:
        RecordError, HydraException, OmegaConfBaseException: a setting that can't be as it is asked for.
    """
    if (sweeper := sweep.hydra.sweeper.get("_target_")) != BASIC:
        raise RecordError(
            f"hydra/sweeper={str(sweeper).rpartition('.')[2]}: a sweep here runs every value that it names, so that "
            "each is a row with a status; leave hydra/sweeper out, +tune=<name> chooses among the rows"
        )
    parser = OverridesParser.create(config_loader=loader)
    fixed, runs = _combinations(sweep, parser)
    distinct = list(dict.fromkeys(itertools.chain.from_iterable(runs)))
    parsed = dict(zip(distinct, parser.parse_overrides(distinct), strict=True))
    whole = {word for word, override in parsed.items() if isinstance(override.value(), dict)}
    places = {override.key_or_group for override in parsed.values()}
    files_of = {place for place in places if loader.get_group_options(place, ObjectType.CONFIG)}
    groups = {word for word, override in parsed.items() if override.key_or_group in files_of} - whole
    composed: dict[Words, _Composed] = {}
    first: list[Config] = []
    found: list[Row] = []
    names: set[str] = set()
    for number, words in enumerate(runs):
        # A mapping is merged with what is there, so a run with one begins anew.
        files = tuple(word for word in words if word in groups or word in whole)
        if files not in composed:
            composed[files] = _compose(loader, sweep, words)
            first.append(_first(composed[files].config))
        else:
            _set(composed[files], [parsed[word] for word in words if word not in groups])
        config = composed[files].config
        varying = ",".join(sorted(word for word in words if parsed[word].key_or_group not in fixed))
        name = _unlike(_folder(config, varying, number), names)
        names.add(name)
        content = OmegaConf.to_container(config)
        assert isinstance(content, dict)
        del content["hydra"]
        command = ["replay", *words]
        found.append(Row(folder=batch.folder / name, config=content, command=command))  # type: ignore[arg-type]
    if wrong := unused_option(distinct, *(config.engine for config in first)):
        raise RecordError(wrong)
    batch.rows = with_hashes(found)
    batch.launcher = chosen_launcher(sweep)
    return first


def _combinations(sweep: DictConfig, parser: OverridesParser) -> tuple[set[str], list[Words]]:
    """What all runs share, by key, and the words of each run; a word replaces an earlier one of the same key."""
    parameters: Mapping[str, Any] = sweep.hydra.sweeper.get("params") or {}
    lines = [f"{key}={value}" for key, value in parameters.items()] + list(sweep.hydra.overrides.task)
    values: dict[str, list[str]] = {}
    fixed: set[str] = set()
    for override in parser.parse_overrides(lines):
        key = override.get_key_element()
        fixed.discard(override.key_or_group)
        if not override.is_sweep_override():
            fixed.add(override.key_or_group)
            values[key] = [str(override.input_line)]
        elif override.is_discrete_sweep():
            values[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            raise HydraException(
                f"{override.input_line}: a sweep names its values; write them with commas or range()"
            )
    return fixed, list(itertools.product(*values.values()))


def _compose(loader: ConfigLoader, sweep: DictConfig, words: Words) -> _Composed:
    config = loader.load_sweep_config(sweep, list(words))
    hydra = config.hydra
    needed = {
        "sweep": {"dir": str(sweep.hydra.sweep.dir), "subdir": _raw_subdir(hydra)},
        "job": {"name": hydra.job.name},
        "runtime": {"choices": OmegaConf.to_container(hydra.runtime.choices)},
    }
    with open_dict(config):
        config.hydra = OmegaConf.create(needed)
    return _Composed(config=config, words=words)


def _first(config: DictConfig) -> Config:
    """What can be wrong with all runs of the same files."""
    task = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    settings = checked(task)
    if wrong := refusal(settings.tune, settings.workload):
        raise RecordError(wrong)
    return settings


def _set(composed: _Composed, overrides: Sequence[Override]) -> None:
    for override in overrides:
        if override.is_delete():  # it is gone
            continue
        try:
            OmegaConf.update(
                composed.config,
                override.key_or_group,
                override.value(),
                merge=True,
                force_add=override.is_add() or override.is_force_add(),
            )
        except OmegaConfBaseException as error:
            raise HydraException(f"Error merging override {override.input_line}") from error


def _folder(config: DictConfig, varying: str, number: int) -> str:
    if _raw_subdir(config.hydra) == SUBDIR:
        return row_folder(config.engine.name, varying)  # what OmegaConf would take 2 ms to find out
    with open_dict(config):
        config.hydra.job.override_dirname = varying
        config.hydra.job.num = config.hydra.job.id = number
    return str(OmegaConf.select(config, "hydra.sweep.subdir"))


def _raw_subdir(hydra: DictConfig) -> str:
    raw: Any = OmegaConf.to_container(hydra.sweep)
    return str(raw["subdir"])


def _unlike(name: str, taken: set[str]) -> str:
    """Two runs need two folders, whatever names them alike: signs that a path can't have, or that it is cut."""
    for number in itertools.count(2):
        if name not in taken:
            return name
        name = f"{re.sub(r'~[0-9]+$', '', name)[: LONGEST_NAME - 5]}~{number}"
    raise AssertionError
