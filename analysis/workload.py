"""What was replayed, as the records tell it: the size of the workload and the shape of its turns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.compare import TURN_KINDS
from analysis.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSummary:
    name: str
    hash: str
    sessions: int
    turns: int
    output_tokens: int
    turns_by_kind: Mapping[str, int]
    new_tokens_median: Mapping[str, float]
    new_tokens_median_all: float | None
    """Over all turns; None where none was replayed."""
    losses: Mapping[str, int]


def what_was_replayed(runs: Sequence[Run]) -> WorkloadSummary:
    """From the run that got furthest: what it replayed of the recording."""
    furthest = max(runs, key=lambda run: len(run.turns))
    turns = furthest.turns[furthest.turns["repeat"] == furthest.turns["repeat"].min()]
    about = furthest.result["workload"]
    by_kind = {kind: turns[turns["kind"] == kind] for kind in TURN_KINDS}
    return WorkloadSummary(
        name=str(about["name"]),
        hash=str(about["hash"]),
        sessions=int(about["sessions"]),
        turns=int(about["turns"]),
        output_tokens=int(turns["output_tokens"].sum()),
        turns_by_kind={kind: len(part) for kind, part in by_kind.items() if len(part)},
        new_tokens_median={kind: float(part["new_tokens"].median()) for kind, part in by_kind.items() if len(part)},
        new_tokens_median_all=float(turns["new_tokens"].median()) if len(turns) else None,
        losses=dict(about.get("losses") or {}),
    )
