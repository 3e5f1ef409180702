"""Which runs a command goes on with: those of ``resume=<folder>``, and those that its sweep's folder holds."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from replay.batch import BATCH_FILE, RESUME, Batch, Row, hidden, interrupted, restored, stored, with_hashes
from replay.config import CONF, checked, chosen_launcher, unused_option
from replay.record import RESULT_FILE, TURNS_FILE, RecordError
from replay.rows import changed, known

SWEEP_FLAGS = ("-m", "--multirun")
LAUNCHER = ("hydra/launcher=", "hydra.launcher.")


def resumed(words: Sequence[str]) -> Batch:
    """The batch that ``resume=<folder>`` names; other settings typed beside it replace the stored ones.

    Raises:
        RecordError: no such folder, or words that do not go with it.
        OmegaConfBaseException: a setting that can't be as it is asked for.
    """
    if flags := [word for word in words if word.startswith("-") and word not in SWEEP_FLAGS]:
        raise RecordError(f"{flags[0]} does not go with resume=<folder>; leave it out")
    (folder,) = [word.removeprefix(RESUME) for word in words if word.startswith(RESUME)][-1:]
    launching = [word for word in words if word.startswith(LAUNCHER)]
    typed = [word for word in words if not word.startswith((RESUME, "-", *LAUNCHER))]
    batch = interrupted(Path(folder), ["replay", *words])
    groups = [key for key, value in batch.rows[0].config.items() if isinstance(value, Mapping)]
    for word in typed:
        if word.startswith(("+", "~", "hydra")) or word.partition("=")[0] in groups:
            raise RecordError(
                f"{word} does not go with resume=<folder>, whose choices of {', '.join(groups)} stay; leave it out, "
                "start a new run, or change a setting within, such as engine.start_timeout_s=<seconds>"
            )
    changes = OmegaConf.from_dotlist(typed)
    rows = [_with(row, changes) for row in batch.rows] if typed else batch.rows
    settings = checked(OmegaConf.create(dict(rows[0].config)))
    each = {row.config["engine"]["name"]: row for row in rows}.values()
    if wrong := unused_option(typed, *(checked(OmegaConf.create(dict(row.config))).engine for row in each)):
        raise RecordError(wrong)
    for row in rows:
        if unknown := hidden(row.config):
            raise RecordError(f"{row.folder}: {unknown[0]} was not stored, as a secret; add {unknown[0]}=<value>")
    batch.rows = rows
    batch.report = settings.report
    if launching:
        batch.launcher = _launcher(launching)
    return batch


def _with(row: Row, changes: DictConfig) -> Row:
    config: Any = OmegaConf.to_container(OmegaConf.merge(OmegaConf.create(dict(row.config)), changes))
    row_now = replace(row, config=config)
    return with_hashes([row_now])[0] if changed(row.config, config) else row_now


def _launcher(words: Sequence[str]) -> dict[str, Any] | None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("config", list(words), return_hydra_config=True)
    return chosen_launcher(composed)


def take_up(batch: Batch) -> None:
    """Go on in a sweep's folder that is not new (``hydra.sweep.dir=<folder>``): a run that is there is not run again.

    It is known by its configuration, whatever its folder is called.

    Raises:
        RecordError: a folder that this command would write to holds a run with another configuration.
    """
    if not batch.folder.is_dir():
        return
    found = known(batch.folder)
    before = stored(batch.folder)["rows"] if (batch.folder / BATCH_FILE).is_file() else []
    rows = []
    for row in batch.rows:
        held = found.get(row.config_hash, [])
        if held:
            folder = row.folder if row.folder in held else held[0]
            held.remove(folder)
            row = replace(row, folder=folder)
            batch.resume = True
        elif (row.folder / RESULT_FILE).is_file() or (row.folder / TURNS_FILE).is_file():
            raise RecordError(
                f"{row.folder}: already holds a run{_unlike(row, batch, before)}; choose another folder"
            )
        rows.append(row)
    batch.rows = rows
    taken = {row.folder for row in rows}
    batch.others = [row for row in before if (batch.folder / row["folder"]).resolve() not in taken]


def _unlike(row: Row, batch: Batch, before: Sequence[Mapping[str, Any]]) -> str:
    for old in before:
        if (batch.folder / old["folder"]).resolve() == row.folder.resolve():
            return " with other settings: " + "; ".join(changed(restored(old["config"]), row.config)[:3])
    return ""
