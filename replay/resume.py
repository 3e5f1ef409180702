"""What an interrupted run left in its folder, and whether it may be gone on with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import orjson

from engines.base import EngineError
from replay import comparability
from replay.record import RESULT_FILE, TURNS_FILE, TurnRecord, read_result, read_turns
from workloads.load import Workload

WORKLOAD = "workload.hash"
SHOWN = 40
"""Characters of a value in a message."""
_SERVER = ("version", "digest", "image")
"""Of a server's description: what another process of the same engine shares."""


class RefusedError(EngineError):
    """The run can't be gone on with; what is in the folder stays as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """The records and the result of the commands before this one; empty for a run that begins."""

    result: Mapping[str, Any] = field(default_factory=dict)
    turns: tuple[TurnRecord, ...] = ()

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Read a run folder; one without a turn counts as empty.

        Raises:
            RecordError: damaged records, or turns without a result.
        """
        if not (folder / TURNS_FILE).is_file():
            return cls()
        turns = tuple(read_turns(folder))
        return cls(result=read_result(folder), turns=turns) if turns else cls()

    @property
    def server(self) -> dict[str, Any]:
        return dict(self.result.get("engine", {}).get("server") or {})

    def complete(self, workload: Workload) -> frozenset[str]:
        """Sessions whose newest attempt has every turn, all verified."""
        attempts = self.attempts()
        good: dict[str, set[int]] = {}
        for turn in self.turns:
            if turn.status == "ok" and turn.attempt == attempts[turn.session_id] - 1:
                good.setdefault(turn.session_id, set()).add(turn.turn)
        return frozenset(
            session.session_id
            for session in workload.sessions
            if good.get(session.session_id) == set(range(len(session.turns)))
        )

    def attempts(self) -> dict[str, int]:
        """Session → the number of its next attempt."""
        found: dict[str, int] = {}
        for turn in self.turns:
            found[turn.session_id] = max(found.get(turn.session_id, 0), turn.attempt + 1)
        return found

    def refuse_if_changed(self, now: Mapping[str, Any]) -> None:
        """Compare with the result as this command would write it.

        Raises:
            RefusedError: names every field in which the two differ.
        """
        if not self.turns:
            return
        old, new = _fields(self.result), _fields(orjson.loads(orjson.dumps(now)))
        if changed := comparability.differences(old, new):
            shown = "; ".join(f"{name} was {_short(old.get(name))}, is {_short(new.get(name))}" for name in changed)
            if WORKLOAD in changed:
                shown = f"the workload differs: {''.join(_workload_changes(self.result, now))}{shown}"
            raise RefusedError(
                f"what it depends on has changed since it began: {shown}; restore it, or start a new run"
            )


def _fields(result: Mapping[str, Any]) -> dict[str, Any]:
    server = result["engine"].get("server") or {}
    return {
        **comparability.run_key(result)["fields"],
        "pressure.phases": (result["config"].get("pressure") or {}).get("phases"),
        **{f"engine.server.{name}": server[name] for name in _SERVER if name in server},
    }


def _workload_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """The settings that may have made another workload of it; none when its files have changed."""
    before, after = (result["config"].get("workload") or {} for result in (old, new))
    for name in comparability.differences(before, after):
        shown = ["null" if at.get(name) is None else _short(at[name]) for at in (before, after)]
        yield f"workload.{name} was {shown[0]}, is {shown[1]}; "


def _short(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def finished(folder: Path) -> bool:
    """Whether nothing is left to do there."""
    if not (folder / RESULT_FILE).is_file():
        return False
    result = read_result(folder)
    return result["status"] == "complete" and all(status == "complete" for status in result["sessions"].values())
