"""A run folder's turns as a frame, with the metrics of every turn computed."""

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.metrics import METRICS
from replay.record import TURNS_FILE, RecordError, TurnRecord, read_turns

OK = "ok"
_OBSERVED = (
    "session_id", "repeat", "turn", "kind", "attempt", "status", "error",
    "prompt_tokens", "new_tokens", "output_tokens", "cached_tokens", "prefilled_tokens", "verified_by",
)  # fmt: skip
COLUMNS = ("engine", *_OBSERVED, *METRICS)


def turn_frame(folder: Path, engine: str) -> pd.DataFrame:
    """Every recorded turn, failed ones and earlier attempts too; columns ``COLUMNS``, times in seconds.

    Args:
        engine: what the column of that name holds.

    Raises:
        RecordError: no records, damaged ones, a turn twice, or times that can't be true.
    """
    frame = pd.DataFrame(_rows(folder, engine), columns=list(COLUMNS))
    doubles = frame[frame.duplicated(["session_id", "repeat", "attempt", "turn"])]
    if len(doubles):
        row = doubles.iloc[0]
        raise RecordError(
            f"{folder / TURNS_FILE}: session {row['session_id']!r} has turn {row['turn']} of attempt "
            f"{row['attempt']} twice; two runs wrote to one folder: run `replay` again"
        )
    return frame


def _rows(folder: Path, key: str) -> Iterator[tuple[Any, ...]]:
    for number, record in enumerate(read_turns(folder), 1):
        if record.status == OK and (fault := _fault(record)):
            raise RecordError(
                f"{folder / TURNS_FILE}:{number}: session {record.session_id!r} turn {record.turn} {fault}; "
                "the file was changed after the run"
            )
        # Computed while reading, so that the arrivals of a long run's tokens are never all in memory.
        yield (
            key,
            *(getattr(record, name) for name in _OBSERVED),
            *(metric(record) for metric in METRICS.values()),
        )


def _fault(record: TurnRecord) -> str | None:
    """Why a turn that claims success can't be true."""
    if record.sent_ns is None or record.end_ns is None or not record.token_ns:
        return "is ok but lacks the time it was sent, of a token or of its end"
    stamps = (record.sent_ns, *record.token_ns, record.end_ns)
    if not all(isinstance(stamp, int) for stamp in stamps):
        return "has a time that is not a whole number of nanoseconds"
    if any(later < earlier for earlier, later in pairwise(stamps)) or stamps[0] == stamps[1]:
        return "has times out of order"
    for name in ("server_prefill_s", "server_decode_s"):
        value = getattr(record, name)
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
            return f"has {name} = {value!r}"
    return None


def last_attempts(frame: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The turns that count, and how many belong to attempts that were given up and tried again."""
    last = frame.groupby(["session_id", "repeat"])["attempt"].transform("max") == frame["attempt"]
    return frame[last].reset_index(drop=True), int((~last).sum())
