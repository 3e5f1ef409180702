"""Of a sweep with hundreds of settings, those that a report shows in full: with intervals, figures and all turns."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.compare import choose_baseline
from analysis.runs import COMPLETE, Run

MANY = 40
"""So many are shown. 500 would take a quarter of an hour, and nobody finds anything in figures of 500 lines."""
UNFINISHED = 5
"""Of those, so many may be runs that did not complete, so that a page says what went wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """A run that is only listed."""

    key: str
    label: str
    status: str
    error: str | None
    sessions: int
    """Complete in every repeat."""
    total_request_s: float | None
    """Over these, the mean of the repeats; None when it did not complete."""


def foremost(runs: Sequence[Run], baseline: str | None = None) -> tuple[tuple[Run, ...], tuple[Other, ...]]:
    """The fastest, the baseline and some that did not complete, in the order they ran; the others, fastest first."""
    if len(runs) <= MANY:
        return tuple(runs), ()
    listed = {run.key: _listed(run) for run in runs}
    complete = [run.key for run in runs if run.status == COMPLETE and listed[run.key].total_request_s is not None]
    kept = {choose_baseline(complete, baseline if baseline in complete else None)} if complete else set()
    kept |= set([run.key for run in runs if run.status != COMPLETE][:UNFINISHED])
    for key in sorted(complete, key=lambda key: (-listed[key].sessions, listed[key].total_request_s)):
        if len(kept) < MANY:
            kept.add(key)
    others = sorted(
        (other for key, other in listed.items() if key not in kept),
        key=lambda other: (other.total_request_s is None, other.total_request_s),
    )
    return tuple(run for run in runs if run.key in kept), tuple(others)


def _listed(run: Run) -> Other:
    finished = [session for session, status in run.sessions.items() if status == COMPLETE]
    whole = run.status == COMPLETE and bool(finished)
    turns = run.measured[run.measured["session_id"].isin(finished)]
    return Other(
        key=run.key,
        label=run.label,
        status=run.status,
        error=run.error,
        sessions=len(finished),
        total_request_s=float(turns["stream_s"].sum()) / len(run.results) if whole else None,
    )
