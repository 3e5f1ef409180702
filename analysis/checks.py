"""The validity checks that the runs recorded of themselves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analysis.runs import Run

INVALID = "invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A validity check of one run; ``advice`` says what to do when it is not ok."""

    engine: str
    repeat: int | None
    """None where the run was not repeated."""
    name: str
    ok: bool | None
    """None: could not be told."""
    value: Any
    threshold: str
    severity: str
    """What it means when it is not ok: ``invalid``, the numbers are wrong; ``warning``, noisy or fewer."""
    advice: str


def checks(runs: Sequence[Run]) -> tuple[Check, ...]:
    """Of every run and repeat, in the order they ran."""
    return tuple(
        Check(
            engine=run.key,
            repeat=result.get("repeat", 0) if len(run.results) > 1 else None,
            name=check["name"],
            ok=check["ok"],
            value=check.get("value"),
            threshold=check.get("threshold") or "",
            severity=check.get("severity") or INVALID,
            advice=check.get("advice") or "",
        )
        for run in runs
        for result in run.results
        for check in result["validity"]
    )
