"""A run folder's turns as a frame, with the metrics of every turn computed."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import registry
from replay.record import TURNS_FILE, RecordError, TurnRecord, read_turns

OK = "ok"
_OBSERVED = (
    "session_id", "repeat", "turn", "kind", "attempt", "status", "error",
    "prompt_tokens", "new_tokens", "output_tokens", "cached_tokens", "prefilled_tokens", "verified_by",
)  # fmt: skip
_WHOLE = ("turn", "attempt", "repeat", "prompt_tokens", "new_tokens", "output_tokens", "due_ns")
_OPTIONAL_WHOLE = ("sent_ns", "first_byte_ns", "end_ns", "cached_tokens", "prefilled_tokens")
_WORDS = ("session_id", "kind", "status")


def columns() -> tuple[str, ...]:
    """Of the frame of turns: what was observed, then every metric, users' own too.

    Raises:
        RecordError: an installed package offers a metric that can't be used.
    """
    return ("engine", *_OBSERVED, *registry.metrics())


def turn_frame(folder: Path, engine: str) -> pd.DataFrame:
    """Every recorded turn, failed ones and earlier attempts too; columns ``columns()``, times in seconds.

    Args:
        engine: what the column of that name holds.

    Raises:
        RecordError: no records, damaged ones, a turn twice, times that can't be true, or a metric that gives no
            number.
    """
    frame = pd.DataFrame(_rows(folder, engine), columns=list(columns()))
    doubles = frame[frame.duplicated(["session_id", "repeat", "attempt", "turn"])]
    if len(doubles):
        row = doubles.iloc[0]
        raise RecordError(
            f"{folder / TURNS_FILE}: session {row['session_id']!r} has turn {row['turn']} of attempt "
            f"{row['attempt']} twice; two runs wrote to one folder: run `replay` again"
        )
    return frame


def _rows(folder: Path, key: str) -> Iterator[tuple[Any, ...]]:
    metrics = registry.metrics().values()
    for number, record in enumerate(read_turns(folder), 1):
        if fault := _unlike_a_record(record) or (_fault(record) if record.status == OK else None):
            raise RecordError(
                f"{folder / TURNS_FILE}:{number}: session {record.session_id!r} turn {record.turn} {fault}; "
                "the file was changed after the run"
            )
        # Computed while reading, so that the arrivals of a long run's tokens are never all in memory.
        yield (
            key,
            *(getattr(record, name) for name in _OBSERVED),
            *(registry.value(metric, record) for metric in metrics),
        )


def _unlike_a_record(record: TurnRecord) -> str | None:
    """Which field holds what it can't, whatever became of the turn."""
    for name in _WORDS:
        if not isinstance(getattr(record, name), str):
            return f"has {name} = {getattr(record, name)!r}"
    for name in (*_WHOLE, *_OPTIONAL_WHOLE):
        value = getattr(record, name)
        if not isinstance(value, int) and not (value is None and name in _OPTIONAL_WHOLE):
            return f"has {name} = {value!r}, which is not a whole number"
    if not set(map(type, record.token_ns)) <= {int}:
        return "has a time that is not a whole number of nanoseconds"
    for name in ("server_prefill_s", "server_decode_s"):
        value = getattr(record, name)
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
            return f"has {name} = {value!r}"
    return None


def _fault(record: TurnRecord) -> str | None:
    """Why a turn that claims success can't be true."""
    if record.sent_ns is None or record.end_ns is None or not record.token_ns:
        return "is ok but lacks the time it was sent, of a token or of its end"
    stamps = (record.sent_ns, *record.token_ns, record.end_ns)
    if stamps != tuple(sorted(stamps)) or stamps[0] == stamps[1]:
        return "has times out of order"
    return None


def last_attempts(frame: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The turns that count, and how many belong to attempts that were given up and tried again."""
    last = frame.groupby(["session_id", "repeat"])["attempt"].transform("max") == frame["attempt"]
    return frame[last].reset_index(drop=True), int((~last).sum())
