"""The runs of a sweep as they lie on the disk: which configuration each measured, and how it ended."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replay.environment import clock_pair
from replay.record import RESULT_FILE, TURNS_FILE, RecordError, read_result, write_result
from replay.redact import redact

COMPLETE, FAILED, INVALID, INTERRUPTED, ABSENT = "complete", "failed", "invalid", "interrupted", "absent"
RUNNING = "running"
"""Also what a run that was killed leaves."""
UNMEASURED = ("name", "results", "resume", "report", "retries", "on_failure", "on_noise", "lock", "scratch", "gate")
"""Settings that say where results go and what is done with them: a run with others is the same run."""
NOISE = ("event-loop lag", "client and server totals agree")
"""Checks that other programs on the same cores can fail: the times are wrong, the engine need not be."""
RESULT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Status:
    """How a run ended."""

    name: str
    """``complete``, ``invalid`` (complete, but a check says that its numbers are wrong), ``failed``, ``interrupted``,
    or ``absent``: it never began."""
    why: str = ""
    noise: bool = False
    """``invalid``, and only by checks that other programs on the machine can fail."""


def measured(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a configuration a number depends on."""
    found = {key: value for key, value in config.items() if key not in UNMEASURED}
    if isinstance(
        order := found.get("order"), Mapping
    ):  # in which order a sweep's runs start is no run's own setting
        found["order"] = {key: value for key, value in order.items() if key != "engines"}
    return found


def config_hash(redacted: Mapping[str, Any]) -> str:
    """Of a configuration as it is stored, so that it can be computed again from what is stored."""
    return hashlib.sha256(json.dumps(measured(redacted), sort_keys=True, default=str).encode()).hexdigest()[:16]


def flat(config: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """``{"engine": {"threads": 2}}`` → ``{"engine.threads": 2}``."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{place}{key}"
        found |= flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return found


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """``engine.threads was 2, is 4``, for each setting in which two configurations measure something else."""
    old, new = flat(measured(before)), flat(measured(after))
    return [
        f"{name} was {old.get(name, 'absent')}, is {new.get(name, 'absent')}"
        for name in dict.fromkeys([*old, *new])
        # A number that was typed as text is the same number.
        if str(old.get(name)) != str(new.get(name))
    ]


def status(folder: Path) -> Status:
    """From the run's result. Raises RecordError when it is damaged."""
    if not (folder / RESULT_FILE).is_file():
        return Status(ABSENT)
    result = read_result(folder)
    name, error = str(result["status"]), str(result.get("error") or "")
    if name == RUNNING:
        return Status(INTERRUPTED, "it never said that it ended: killed, or still at work")
    if name != COMPLETE:
        return Status(name, error)
    if failed := [session for session, ended in result["sessions"].items() if ended != COMPLETE]:
        return Status(FAILED, f"{len(failed)} of {len(result['sessions'])} sessions failed: {failed[0]}")
    wrong = [
        check
        for check in result.get("validity", ())
        if check["ok"] is False and check.get("severity", INVALID) == INVALID
    ]
    if not wrong:
        return Status(COMPLETE)
    noise = all(check["name"] in NOISE for check in wrong)
    first = next(check for check in wrong if noise or check["name"] not in NOISE)
    return Status(INVALID, f"{first['name']}: {first.get('value')}", noise)


def finished(folder: Path) -> bool:
    """Whether nothing is left to do there: a valid run, or one that would be as invalid again."""
    return status(folder).name in (COMPLETE, INVALID)


def has_turns(folder: Path) -> bool:
    turns = folder / TURNS_FILE
    return turns.is_file() and turns.stat().st_size > 0


def known(folder: Path) -> dict[str, list[Path]]:
    """Configuration hash → run folders below ``folder`` that measured it, or began to."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob(RESULT_FILE)):
        if stored := read_result(path.parent).get("config_hash"):
            found.setdefault(str(stored), []).append(path.parent)
    return found


def note_failure(
    folder: Path, error: str, *, config: Mapping[str, Any], config_hash: str, command: Iterable[str] = ()
) -> None:
    """Leave a result that says why there is none: of a run that never began, or whose process is gone.

    What the run itself wrote is kept, and a result that says how it ended is not touched.

    Args:
        config: the resolved configuration; of what is not resolved, as it stands.

    Raises:
        RecordError: the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        result = read_result(folder)
    except RecordError:
        result = _empty(config, command) | {"config_hash": config_hash}
    if result["status"] == RUNNING:
        write_result(folder, redact(result | {"status": FAILED, "error": error}))


def _empty(config: Mapping[str, Any], command: Iterable[str]) -> dict[str, Any]:
    engine, workload, model = (config.get(name) or {} for name in ("engine", "workload", "model"))
    name = engine.get("name", "unknown")
    return {
        "version": RESULT_VERSION,
        "status": RUNNING,
        "error": None,
        "engine": {
            "name": name,
            "label": engine.get("label", name),
            "note": engine.get("note", ""),
            "settings": dict(engine),
            "server": {},
        },
        "workload": {
            "name": workload.get("name", "unknown"),
            "hash": None,
            "sessions": None,
            "turns": None,
            "turns_by_session": {},
            "losses": {},
        },
        "model": {"name": model.get("name", "unknown"), "hash": None},
        "repeat": config.get("repeat", 0),
        "environment": {},
        "config": dict(config),
        "command": list(command),
        "clock": clock_pair(),
        "resumed": [],
        "sessions": {},
        "telemetry": None,
        "validity": [],
    }
