"""Runs of one engine that differ in their settings: what an ablation and an iso-VRAM curve are made of."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from analysis.runs import Run
from analysis.subject import name_of

_OF_NO_CONSEQUENCE = {"name", "label", "note", "port", "url"}
_VRAM = re.compile(r"vram|gpu_mem", re.IGNORECASE)
_SIZE = re.compile(r"^\s*([0-9.]+)\s*([kmg])?i?b?\s*$", re.IGNORECASE)
_UNIT = re.compile(r"_([kmg])i?b$", re.IGNORECASE)
_GIB = {"k": 2**-20, "m": 2**-10, "g": 1.0}


@dataclass(frozen=True, slots=True)
class Variant:
    run: Run
    name: str
    """``Ostinato: placement=layers``: what tells it from the engine's other variants: what a sweep varied, else one
    setting if that is enough, else all that differ."""


def variants(runs: tuple[Run, ...]) -> list[Variant]:
    """Those of engines that ran with several settings, other than several VRAM budgets, in the order they ran."""
    made = []
    settings = {run.key: _settings(run) for run in runs}
    for run in runs:
        others = [other for other in runs if name_of(other.key) == name_of(run.key)]
        unlike = _unlike([settings[other.key] for other in others])
        if unlike and not all(_VRAM.search(field) for field in unlike):
            made.append(Variant(run, _named(run, others, unlike, settings)))
    return made


def _named(run: Run, others: list[Run], unlike: list[str], settings: Mapping[str, dict[str, str]]) -> str:
    labels = [str(other.result["engine"].get("label")) for other in others]
    label = str(run.result["engine"].get("label") or run.key)
    if len(set(labels)) == len(labels):
        return label
    swept = run.key.removeprefix(name_of(run.key)).strip(" ()")
    if "=" in swept:
        return f"{label}: {swept}"
    alone = [field for field in unlike if len({settings[other.key].get(field) for other in others}) == len(others)]
    mine = settings[run.key]
    return f"{label}: " + ", ".join(
        f"{field.rpartition('.')[2]}={mine.get(field, 'none')}" for field in alone[:1] or unlike
    )


def _settings(run: Run) -> dict[str, str]:
    return _flat(run.result["engine"].get("settings") or {})


def _unlike(settings: list[dict[str, str]]) -> list[str]:
    fields = dict.fromkeys(field for each in settings for field in each)
    return [field for field in fields if len({each.get(field) for each in settings}) > 1]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    return dict(_leaves(settings, prefix))


def _leaves(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if prefix or name not in _OF_NO_CONSEQUENCE:
            if isinstance(value, Mapping):
                yield from _leaves(value, f"{prefix}{name}.")
            else:
                yield f"{prefix}{name}", str(value)


def vram_gib(run: Run) -> float | None:
    """The VRAM budget that an engine was started with, from a setting or option that is named for it and has a unit
    in its name or value: ``vram_gib: "22"``, ``vram_budget: 8192MiB``. None: none."""
    for field, value in _settings(run).items():
        name = field.rpartition(".")[2]
        size = _SIZE.match(value)
        unit = _UNIT.search(name)
        if _VRAM.search(name) and size and (letter := size[2] or (unit and unit[1])):
            return float(size[1]) * _GIB[letter.lower()]
    return None
