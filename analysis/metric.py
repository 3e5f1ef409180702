"""What a metric is: a function of one turn's record, with all that a table needs to say about it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from replay.record import TurnRecord

Value = float | int | bool | None


class Direction(StrEnum):
    LOWER = "lower is better"
    HIGHER = "higher is better"
    NONE = "neither"
    """It describes a turn; a gate can't judge it."""


class Over(StrEnum):
    """How turns become one number of an engine."""

    MEDIAN = "median over turns"
    SUM = "sum over turns"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. A program of yours offers its own as an entry point of the group ``ostinato_replay.metrics``.

    ``Metric(name="wait_s", label="wait", unit="s", formula="…", direction=Direction.LOWER, absent="…", of=wait_s)``
    """

    name: str
    """A Python name, unique, with its unit; the column of the frame of turns."""
    label: str
    """What a table calls it."""
    unit: str
    """``s``, ``tokens``; empty for a number without one."""
    formula: str
    """Names of the record's fields (``replay/record.py``) and of other metrics."""
    direction: Direction
    absent: str
    """Why a turn has no value."""
    of: Callable[[TurnRecord], Value]
    """None is "not measured" and never becomes 0."""
    over: Over = Over.MEDIAN
    by_kind: bool = False
    """Whether it is told for first turns, turns after a tool and turns after a user apart."""

    def __call__(self, turn: TurnRecord) -> Value:
        return self.of(turn)
