"""What a check found, and what to do about it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "advice", "failed", "needs GPU: not run here"]
"""``advice``: it runs, and its numbers may suffer; ``failed``: it can't run."""

NOT_RUN: State = "needs GPU: not run here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    check: str
    state: State
    found: str
    advice: str = ""


def can_run(findings: Iterable[Finding]) -> bool:
    return all(finding.state != "failed" for finding in findings)
