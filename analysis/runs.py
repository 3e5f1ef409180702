"""Run folders to runs: one an engine, its repeats together."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.frame import OK, columns, last_attempts, turn_frame
from replay.record import RESULT_FILE, TURNS_FILE, RecordError, read_result

RESULT_VERSION = 1
COMPLETE = "complete"
RUNNING, INTERRUPTED = "running", "interrupted"
KILLED = "it never said that it ended: killed, or still at work"
_FIELDS = ("status", "engine", "workload", "model", "environment", "config", "sessions", "validity")

Result = Mapping[str, Any]
"""``result.json`` as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One engine over the workload, once or repeated."""

    key: str
    """The engine's name; with a folder when several runs of one engine lie together that are no repeats."""
    folders: tuple[Path, ...]
    """One a repeat."""
    results: tuple[Result, ...]
    turns: pd.DataFrame
    """Columns ``frame.columns()``: turns of each session's last attempt, failed ones too. Times in seconds."""
    earlier_attempts: int
    """Turns of attempts that were given up and tried again."""

    @property
    def result(self) -> Result:
        """The first repeat's; the others share its engine, workload and model."""
        return self.results[0]

    @property
    def label(self) -> str:
        """How the engine is called in a table."""
        engine = self.result["engine"]
        return str(engine.get("label") or engine["name"]) + self.key.removeprefix(engine["name"])

    @property
    def identity(self) -> str:
        """Engine, settings, workload and model: two runs of one identity are one engine measured twice."""
        return _identity(self.result)

    @property
    def status(self) -> str:
        """``complete`` when every repeat is; else what the first other one is."""
        return next((str(result["status"]) for result in self.results if result["status"] != COMPLETE), COMPLETE)

    @property
    def error(self) -> str | None:
        return next((str(result["error"]) for result in self.results if result.get("error")), None)

    @property
    def sessions(self) -> dict[str, str]:
        """Session → ``complete`` when it is in every repeat, else what it is in another."""
        known = dict.fromkeys(session for result in self.results for session in result["sessions"])
        return {
            session: next((status for status in statuses if status != COMPLETE), COMPLETE)
            for session in known
            if (statuses := [str(result["sessions"].get(session, "not reached")) for result in self.results])
        }

    @property
    def measured(self) -> pd.DataFrame:
        """The turns that may enter a latency statistic."""
        return self.turns[self.turns["status"] == OK]

    @property
    def failed(self) -> pd.DataFrame:
        return self.turns[self.turns["status"] != OK]


def read_runs(folder: Path) -> tuple[Run, ...]:
    """Every run at or below ``folder`` (a folder with ``result.json``), in the order they started.

    Raises:
        RecordError: no run there, a damaged one, one of another version, or turns that can't be true.
    """
    if not folder.is_dir():
        raise RecordError(f"{folder}: no such folder; name one that `replay` wrote")
    found = [(path.parent, _result(path.parent)) for path in sorted(folder.rglob(RESULT_FILE))]
    if not found:
        raise RecordError(f"{folder}: no {RESULT_FILE} here or below; name a folder that `replay` wrote")
    groups = _repeats(sorted(found, key=lambda item: (_started_ns(item[1]), item[0])))
    names = [group[0][1]["engine"]["name"] for group in groups]
    runs = []
    for name, group in zip(names, groups, strict=True):
        place = str(group[0][0].relative_to(folder)).removeprefix(f"{name},")  # a sweep's folder: name,settings
        runs.append(_run(name if names.count(name) == 1 else f"{name} ({place})", group))
    if not any(len(run.measured) for run in runs):
        raise RecordError(
            f"{folder}: no turn was measured; see server.log and the error in {RESULT_FILE}, then `replay` again"
        )
    return tuple(runs)


def experiments(runs: Sequence[Run]) -> tuple[tuple[Run, ...], ...]:
    """The runs by workload and model, where they are experiments beside each other; else all of them as one.

    Beside each other are experiments that measure several engines each, or all the same ones. Anything else is one
    experiment whose runs are not alike. Within an experiment, a run's key is its engine's name where that is enough.
    """
    groups: dict[tuple[str, str], list[Run]] = {}
    # Failed before they had read it: of the experiment whose workload and model are called the same.
    lost = [run for run in runs if run.result["workload"]["hash"] is None]
    for run in runs:
        if run.result["workload"]["hash"] is not None:
            place = (str(run.result["workload"]["hash"]), str(run.result["model"]["hash"]))
            groups.setdefault(place, []).append(run)
    names = [[run.result["engine"]["name"] for run in group] for group in groups.values()]
    several = all(len(set(group)) > 1 for group in names) or len({frozenset(group) for group in names}) == 1
    if len(groups) <= 1 or not several:
        return (tuple(runs),)
    return tuple(
        _alone([*group, *(run for run in lost if _names(run) == _names(group[0]))]) for group in groups.values()
    )


def _names(run: Run) -> tuple[str, str]:
    return str(run.result["workload"]["name"]), str(run.result["model"]["name"])


def _alone(members: Sequence[Run]) -> tuple[Run, ...]:
    names = [run.result["engine"]["name"] for run in members]
    return tuple(
        _renamed(run, name) if names.count(name) == 1 else run for run, name in zip(members, names, strict=True)
    )


def _renamed(run: Run, key: str) -> Run:
    return replace(run, key=key, turns=run.turns.assign(engine=key))


def _result(folder: Path) -> Result:
    result = read_result(folder)
    path = folder / RESULT_FILE
    if (version := result.get("version")) != RESULT_VERSION:
        raise RecordError(f"{path}: result version {version}, this program reads version {RESULT_VERSION}")
    for field in _FIELDS:
        if field not in result:
            raise RecordError(f"{path}: no field {field!r}; run `replay` again")
    if result["status"] == RUNNING:
        return result | {"status": INTERRUPTED, "error": result["error"] or KILLED}
    return result


def _started_ns(result: Result) -> int:
    return int((result.get("clock") or {}).get("wall_ns") or 0)


Group = list[tuple[Path, Result]]


def _repeats(found: Sequence[tuple[Path, Result]]) -> list[Group]:
    """Runs of one engine with the same settings, workload and model and other numbers of repeat belong together."""
    groups: dict[str, Group] = {}
    for place, result in found:
        key = _identity(result)
        taken = {other.get("repeat", 0) for _, other in groups.get(key, [])}
        if result.get("repeat", 0) in taken:  # one engine against itself
            key = str(place)
        groups.setdefault(key, []).append((place, result))
    return list(groups.values())


def _identity(result: Result) -> str:
    alike = [result["engine"]["name"], result["engine"].get("settings"), result["workload"], result["model"]]
    return json.dumps(alike, sort_keys=True)


def _run(key: str, group: Group) -> Run:
    frames = [turn_frame(place, key) for place, result in group if _has_turns(place, result)]
    everything = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame([], columns=list(columns()))
    turns, earlier = last_attempts(everything)
    folders, results = zip(*group, strict=True)
    return Run(key=key, folders=folders, results=results, turns=turns, earlier_attempts=earlier)


def _has_turns(folder: Path, result: Result) -> bool:
    """An engine that failed before its first turn has no records; any other run must."""
    return result["status"] == COMPLETE or (folder / TURNS_FILE).is_file()
