"""A check's verdict."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from replay.record import TurnRecord

Severity = Literal["invalid", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding on a run.

    ``invalid``: the numbers are not what their names say; such a run says so in the title of its report.
    ``warning``: they are, but something made them noisier, or fewer, than they could be.
    """

    name: str
    ok: bool | None
    """None: could not be told; ``value`` says why."""
    value: str
    """What was seen, in words."""
    threshold: str
    """What would have been fine."""
    severity: Severity
    """What it means for the run when it is not ok."""
    advice: str = ""
    """What to do; empty when all is well."""


def last_attempts(turns: Sequence[TurnRecord]) -> list[TurnRecord]:
    """Only a session's last attempt counts."""
    last: dict[str, int] = {}
    for turn in turns:
        last[turn.session_id] = max(turn.attempt, last.get(turn.session_id, 0))
    return [turn for turn in turns if turn.attempt == last[turn.session_id]]


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of them do not exceed (inverse of the empirical distribution)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
