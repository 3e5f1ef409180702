"""One side of `compare`: an engine's finished sessions with the metrics of their turns, from a folder or a file."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pandas as pd

from analysis.checks import INVALID
from analysis.compare import AnalysisError
from analysis.pairing import pair
from analysis.runs import COMPLETE, Result, Run, read_runs
from replay import comparability

TURN_COLUMNS = ("session_id", "repeat", "turn", "kind")
MACHINE_FIELD = "environment."
"""How the fields begin that may differ across machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    source: str
    """The folder or file, as it was named."""
    engine: str
    label: str
    workload: str
    model: str
    started: str
    """ISO 8601, UTC; empty where the run does not say."""
    fields: Mapping[str, Any]
    """What the other side must share (``replay.comparability``)."""
    recorded: Mapping[str, str]
    """Finished session → fingerprint of what the recording says of its turns; in the order of the recording."""
    unfinished: Mapping[str, str]
    """Session → why it does not count."""
    concerns: tuple[str, ...]
    """Validity checks without which the numbers are wrong."""
    turns: pd.DataFrame
    """Measured turns of the finished sessions: ``TURN_COLUMNS``, then metrics."""

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(str(name) for name in self.turns.columns if name not in TURN_COLUMNS)


def read_folder(folder: Path, metrics: Sequence[str], engine: str | None = None) -> Side:
    """The one engine that ran there, or ``engine`` of several: a name, or what only one run's key holds.

    Raises:
        RecordError: records that are missing, damaged or impossible.
        AnalysisError: several engines, no finished session, or repeats that are not alike.
    """
    run = _chosen(read_runs(folder), folder, engine)
    pairing = pair([run])
    if pairing.differences:
        raise AnalysisError(f"{folder}: the repeats are not alike: {'; '.join(pairing.differences)}")
    if not pairing.sessions:
        why = next(iter(pairing.excluded.values()), None) or run.error or "see server.log"
        raise AnalysisError(f"{folder}: no session was finished ({why}); `replay` again")
    turns = run.measured[run.measured["session_id"].isin(pairing.sessions)]
    return Side(
        source=str(folder),
        engine=str(run.result["engine"]["name"]),
        label=run.label,
        workload=str(run.result["workload"]["name"]),
        model=str(run.result["model"]["name"]),
        started=_started(run.result),
        fields=(run.result.get("comparability") or comparability.key(run.result))["fields"],
        recorded=_fingerprints(turns, pairing.sessions),
        unfinished=pairing.excluded,
        concerns=tuple(_concerns(run)),
        turns=turns[[*TURN_COLUMNS, *metrics]].reset_index(drop=True),
    )


def _chosen(runs: Sequence[Run], folder: Path, engine: str | None) -> Run:
    wanted = [run for run in runs if engine is None or engine in (run.key, run.result["engine"]["name"])]
    wanted = wanted or [run for run in runs if engine is not None and engine in run.key]
    if len(wanted) == 1:
        return wanted[0]
    keys = ", ".join(run.key for run in runs)
    if not wanted:
        raise AnalysisError(f"{folder}: no engine {engine!r} there; name one of {keys}")
    places = ", ".join(str(run.folders[0]) for run in wanted)
    raise AnalysisError(f"{folder}: {len(wanted)} engines ({keys}); name one with --engine, or its folder: {places}")


def _started(result: Result) -> str:
    wall_ns = (result.get("clock") or {}).get("wall_ns")
    return datetime.fromtimestamp(wall_ns / 1e9, UTC).isoformat(timespec="seconds") if wall_ns else ""


def _fingerprints(turns: pd.DataFrame, sessions: Sequence[str]) -> dict[str, str]:
    told = turns[["session_id", "turn", "kind", "prompt_tokens", "new_tokens", "output_tokens"]]
    told = told.drop_duplicates().sort_values(["session_id", "turn"])
    rows = {str(session): part.to_numpy()[:, 1:].tolist() for session, part in told.groupby("session_id")}
    return {session: hashlib.sha256(orjson.dumps(rows[session])).hexdigest()[:12] for session in sessions}


def _concerns(run: Run) -> list[str]:
    said = [] if run.status == COMPLETE else [f"the run is {run.status}" + (f": {run.error}" if run.error else "")]
    for result in run.results:
        for check in result["validity"]:
            if check["ok"] is False and (check.get("severity") or INVALID) == INVALID:
                said.append(f"not valid: {check['name']}: {check.get('value')}")
    return list(dict.fromkeys(said))


def common_sessions(base: Side, candidate: Side) -> tuple[str, ...]:
    """Raises AnalysisError when there is none, or one whose turns differ."""
    sessions = tuple(session for session in base.recorded if session in candidate.recorded)
    if not sessions:
        raise AnalysisError(f"{base.source} and {candidate.source} have no finished session in common")
    for session in sessions:
        if base.recorded[session] != candidate.recorded[session]:
            raise AnalysisError(
                f"session {session!r}: {base.source} and {candidate.source} did not replay the same turns"
            )
    return sessions


def differences(base: Side, candidate: Side, *, across_machines: bool) -> tuple[str, ...]:
    """What the sides should share and do not.

    Raises:
        AnalysisError: there is any; with ``across_machines``, any that is not of the machine.
    """
    names = comparability.differences(base.fields, candidate.fields)
    said = tuple(
        f"{name}: {_shown(base.fields, name)} in the base, {_shown(candidate.fields, name)} in the candidate"
        for name in names
    )
    if not across_machines and names:
        hint = "--across-machines shows them without a verdict" if _machines_only(names) else "replay both alike"
        raise AnalysisError(f"not comparable: {'; '.join(said)}; {hint}")
    if not _machines_only(names):
        raise AnalysisError(f"not comparable even across machines: {'; '.join(said)}; replay both alike")
    return said


def _machines_only(names: Sequence[str]) -> bool:
    return all(name.startswith(MACHINE_FIELD) for name in names)


def _shown(fields: Mapping[str, object], name: str) -> str:
    text = str(fields[name]) if name in fields else "absent"
    return text if len(text) <= 40 else text[:39] + "…"
