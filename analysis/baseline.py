"""A baseline that lives in git: what ``analyse export-baseline`` writes and `compare` reads in place of a folder.

Version 1, JSON, one session a line, so that a new baseline is a readable diff:

==============  ====================================================================================================
format          ``ostinato-replay baseline``
version         1
engine          ``{name, label}``
workload, model  their names; what they are is in ``comparability``
started         when the run began, ISO 8601
comparability   the fields that the other side must share, with their values
metrics         metric → its formula: a file of another formula is refused
unfinished      session → why it is not among ``sessions``
concerns        what makes the numbers wrong; a gate never passes on them
sessions        list of ``{id, recorded, kinds, total_s, turns}``: ``recorded`` a fingerprint of the recording's
                turns, ``kinds`` one of ``first``, ``tool``, ``user`` a turn, ``total_s`` the total request time of
                each repeat, ``turns`` metric → one list a repeat with one value a turn, null where it has none
==============  ====================================================================================================
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pandas as pd

from analysis import registry
from analysis.side import TURN_COLUMNS, Side
from replay.record import RecordError

FORMAT = "ostinato-replay baseline"
VERSION = 1
TOTAL = "stream_s"
_DIGITS = 7
"""Significant ones that are kept of a value: a time of 1,000 s to 0.1 ms, one of 10 ms to a nanosecond."""


def write(path: Path, side: Side) -> None:
    """Raises OSError when it can't be written."""
    known = registry.metrics()
    head = {
        "format": FORMAT,
        "version": VERSION,
        "engine": {"name": side.engine, "label": side.label},
        "workload": side.workload,
        "model": side.model,
        "started": side.started,
        "comparability": dict(side.fields),
        "metrics": {name: known[name].formula for name in side.metrics},
        "unfinished": dict(side.unfinished),
        "concerns": list(side.concerns),
    }
    by_session = {str(session): part for session, part in side.turns.groupby("session_id")}
    lines = [_json(_session(session, mark, by_session[session], side)) for session, mark in side.recorded.items()]
    text = ",\n".join(f'"{name}":{_json(value)}' for name, value in head.items())
    temporary = path.with_name(path.name + ".new")
    try:
        temporary.write_text("{\n" + text + ',\n"sessions":[\n' + ",\n".join(lines) + "\n]\n}\n")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _session(session: str, recorded: str, turns: pd.DataFrame, side: Side) -> dict[str, Any]:
    repeats = [part.sort_values("turn") for _, part in turns.groupby("repeat")]
    values = {name: [[_rounded(v) for v in part[name]] for part in repeats] for name in side.metrics}
    return {
        "id": session,
        "recorded": recorded,
        "kinds": repeats[0]["kind"].tolist(),
        "total_s": [_rounded(part[TOTAL].sum()) for part in repeats],
        "turns": values,
    }


def _rounded(value: Any) -> float | None:
    return None if value is None or math.isnan(value) else float(f"{value:.{_DIGITS}g}")


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def read(path: Path) -> Side:
    """A baseline file as a side of a comparison.

    Raises:
        RecordError: no such file, no baseline, another version, another formula, or a damaged one.
    """
    try:
        found = orjson.loads(path.read_bytes())
    except OSError as error:
        raise RecordError(
            f"{path}: {error.strerror}; name a folder that `replay` wrote or a file of `analyse export-baseline`"
        ) from error
    except orjson.JSONDecodeError as error:
        raise RecordError(f"{path}: not JSON ({error}); export the baseline again") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise RecordError(f"{path}: no baseline; make one with `analyse export-baseline FOLDER`")
    if found.get("version") != VERSION:
        raise RecordError(f"{path}: baseline version {found.get('version')}, this program reads version {VERSION}")
    try:
        _check_formulas(path, found["metrics"])
        rows = [row for session in found["sessions"] for row in _rows(path, session, list(found["metrics"]))]
        side = Side(
            source=str(path),
            engine=found["engine"]["name"],
            label=found["engine"]["label"],
            workload=found["workload"],
            model=found["model"],
            started=found["started"],
            fields=dict(found["comparability"]),
            recorded={session["id"]: session["recorded"] for session in found["sessions"]},
            unfinished=dict(found["unfinished"]),
            concerns=tuple(found["concerns"]),
            turns=pd.DataFrame(rows, columns=[*TURN_COLUMNS, *found["metrics"]]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{path}: damaged ({type(error).__name__}: {error}); export the baseline again") from error
    if len(side.recorded) != len(found["sessions"]):
        raise RecordError(f"{path}: a session is there twice; export the baseline again")
    if not side.recorded:
        raise RecordError(f"{path}: no session in it; export the baseline again")
    return side


def _check_formulas(path: Path, formulas: Mapping[str, str]) -> None:
    known = registry.metrics()
    for name, formula in formulas.items():
        if name not in known:
            raise RecordError(f"{path}: holds the metric {name!r}, which is not installed here; install its package")
        if known[name].formula != formula:
            raise RecordError(f"{path}: {name} was computed as {formula!r} then; export the baseline again")


def _rows(path: Path, session: Mapping[str, Any], metrics: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    kinds, totals, values = session["kinds"], session["total_s"], session["turns"]
    for repeat, total_s in enumerate(totals):
        columns = [values[name][repeat] for name in metrics]
        for turn, row in enumerate(zip(kinds, *columns, strict=True)):
            if not all(v is None or (isinstance(v, float | int) and math.isfinite(v)) for v in row[1:]):
                raise RecordError(f"{path}: session {session['id']!r} turn {turn} has a value that is no number")
            yield (session["id"], repeat, turn, *row)
        if TOTAL in metrics and not math.isclose(sum(values[TOTAL][repeat]), total_s, rel_tol=1e-5):
            raise RecordError(
                f"{path}: the turns of session {session['id']!r} do not add up to its total; the file was changed: "
                "export the baseline again"
            )


def only(side: Side, metrics: Sequence[str]) -> Side:
    """Only these metrics.

    Raises:
        RecordError: one that the side lacks.
    """
    for name in metrics:
        if name not in side.metrics:
            raise RecordError(
                f"{side.source}: has no metric {name!r}; export it again with --metric {name}, or name its run folder"
            )
    return replace(side, turns=side.turns[[*TURN_COLUMNS, *metrics]])
