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
    recorded = _recorded_sessions(run.turns)
    return {
        session: _fate(statuses.get(session, "interrupted"), recorded.get(session), expected.get(session))
        for session in dict.fromkeys([*statuses, *recorded])
    }


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What the records hold of a session, over its repeats."""

    failure: str | None
    """Of its first turn that failed."""
    whole: bool
    """Whether its turns are numbered without a gap."""
    shortest: int
    """Turns of the repeat that has fewest."""


def _recorded_sessions(turns: pd.DataFrame) -> dict[str, _Recorded]:
    """All sessions at once: a run has hundreds, and a frame for each costs more than the rest of a report."""
    failed = turns[turns["status"] != OK].drop_duplicates("session_id")
    failures = {
        session: f"turn {turn} failed: {status}" + (f" ({error})" if error else "")
        for session, turn, status, error in failed[["session_id", "turn", "status", "error"]].itertuples(index=False)
    }
    lengths = turns.groupby(["session_id", "repeat"], sort=False)["turn"].agg(["min", "max", "count"]).reset_index()
    lengths["whole"] = (lengths["min"] == 0) & (lengths["max"] + 1 == lengths["count"])
    sessions = lengths.groupby("session_id", sort=False).agg(whole=("whole", "all"), shortest=("count", "min"))
    return {
        str(session): _Recorded(failures.get(session), bool(whole), int(shortest))
        for session, whole, shortest in sessions.itertuples()
    }


def _fate(status: str, recorded: _Recorded | None, expected: int | None) -> str | None:
    if recorded is None:
        return "no turn in the records" if status == COMPLETE else status
    if recorded.failure is not None:
        return recorded.failure
    if status != COMPLETE:
        return status
    if not recorded.whole:
        return "turns are missing from the records"
    if expected is not None and recorded.shortest != expected:
        return f"the records hold {recorded.shortest} of its {expected} turns"
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
