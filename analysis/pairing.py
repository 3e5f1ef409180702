"""Which runs may be compared, and over which sessions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.frame import OK
from analysis.runs import COMPLETE, Result, Run
from replay import comparability

SHOWN = 40
"""Characters of a value in a message: a hash is told by far fewer."""
_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """The sessions that count, and why the others don't."""

    engines: tuple[str, ...]
    """Keys of the runs that finished a session at all."""
    sessions: tuple[str, ...]
    """Finished by every one of ``engines``; in the order of the recording."""
    excluded: Mapping[str, str]
    """Session → which engine did not finish it and why."""
    differences: tuple[str, ...]
    """What differs between runs that should be alike; any makes a comparison void."""


def finished(run: Run) -> list[str]:
    """Sessions of which this engine finished every turn, in the order it ran them."""
    return [session for session, why in _fates(run).items() if why is None]


def pair(runs: Sequence[Run]) -> Pairing:
    """Sessions that every engine finished. An engine that finished none is left out rather than emptying the set."""
    fates = {run.key: _fates(run) for run in runs}
    kept = [run for run in runs if None in fates[run.key].values()]
    everything = list(dict.fromkeys(session for run in kept for session in fates[run.key]))
    excluded: dict[str, str] = {}
    for session in everything:
        for run in kept:
            why = fates[run.key].get(session, "not reached")
            if why is not None:
                excluded.setdefault(session, f"{run.label}: {why}")
    sessions = tuple(session for session in everything if session not in excluded)
    return Pairing(
        engines=tuple(run.key for run in kept),
        sessions=sessions,
        excluded=excluded,
        differences=tuple(_differences(kept, sessions)),
    )


def _fates(run: Run) -> dict[str, str | None]:
    """Session → None when it is finished, else why it does not count; in the order they were run."""
    statuses = run.sessions
    expected: Mapping[str, int] = run.results[0]["workload"].get("turns_by_session") or {}
    turns_of = {str(session): turns for session, turns in run.turns.groupby("session_id", sort=False)}
    return {
        session: _fate(statuses.get(session, "interrupted"), turns_of.get(session), expected.get(session))
        for session in dict.fromkeys([*statuses, *turns_of])
    }


def _fate(status: str, turns: pd.DataFrame | None, expected: int | None) -> str | None:
    if turns is None:
        return "no turn in the records" if status == COMPLETE else status
    failed = turns[turns["status"] != OK]
    if len(failed):
        first = failed.iloc[0]
        said = f" ({first['error']})" if first["error"] else ""
        return f"turn {first['turn']} failed: {first['status']}{said}"
    if status != COMPLETE:
        return status
    return _lost(turns, expected)


def _lost(turns: pd.DataFrame, expected: int | None) -> str | None:
    """Why the records of a session that was replayed to its end do not hold it whole; None when they do."""
    lengths = turns.groupby("repeat")["turn"].agg(["min", "max", "count"])
    if (lengths["min"] != 0).any() or (lengths["max"] + 1 != lengths["count"]).any():
        return "turns are missing from the records"
    shortest = int(lengths["count"].min())
    if expected is not None and shortest != expected:
        return f"the records hold {shortest} of its {expected} turns"
    return None


def _differences(runs: Sequence[Run], sessions: Sequence[str]) -> list[str]:
    """Each line names one field of the comparability key and the values it has."""
    keys = [(run.label, _key(result)) for run in runs for result in run.results]
    unlike = dict.fromkeys(name for _, key in keys for name in comparability.differences(keys[0][1], key))
    found = []
    for name in unlike:
        found.append(f"{name}: " + ", ".join(f"{label} {_shown(key.get(name, _MISSING))}" for label, key in keys))
    if not found and len(runs) > 1:
        found += _unlike_turns(runs, sessions)
    return found


def _key(result: Result) -> Mapping[str, Any]:
    """As it was stored, so that what a run counted as alike when it ran is what counts."""
    stored = result.get("comparability") or comparability.key(result)
    fields: Mapping[str, Any] = stored["fields"]
    return fields


def _shown(value: Any) -> str:
    text = "has none" if value is _MISSING else str(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _unlike_turns(runs: Sequence[Run], sessions: Sequence[str]) -> list[str]:
    first, *others = (_recorded(run, sessions) for run in runs)
    return [
        f"the recorded turns: {runs[0].label} and {run.label} did not replay the same ones"
        for run, other in zip(runs[1:], others, strict=True)
        if not first.equals(other)
    ]


def _recorded(run: Run, sessions: Sequence[str]) -> pd.DataFrame:
    """What the recording says of each turn, once however often it was repeated."""
    columns = ["session_id", "turn", "kind", "prompt_tokens", "new_tokens", "output_tokens"]
    turns = run.turns[run.turns["session_id"].isin(sessions)]
    return turns[columns].drop_duplicates().sort_values(columns[:2]).reset_index(drop=True)
