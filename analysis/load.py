"""When which background load was really on, from what its workers wrote."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from replay.record import PressureRecord, read_pressure

NEVER_NS = 2**62
"""After every stamp."""
Load = tuple[str, ...]
"""Names of the phases that are on at once; empty when none is."""
NO_LOAD: Load = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase as it was, all its workers together. Times are on the clock of the turns."""

    kind: str
    level: float
    """Percent of the time that each worker was asked for."""
    workers: int
    began_ns: int
    """The first worker's start."""
    on_ns: int
    """From here every worker was at it."""
    off_ns: int | None
    """The first worker's stop; None: a worker was killed, no one knows when."""
    ended_ns: int | None
    busy_share: float | None
    """Mean over the workers; see ``PressureRecord``."""
    bytes_per_s: float | None
    """Of all workers."""

    @property
    def name(self) -> str:
        """``cpu 50 %``, ``4 × cpu 50 %``: phases of one name are one load."""
        return ("" if self.workers == 1 else f"{self.workers} × ") + f"{self.kind} {self.level:g} %"


def phases_of(folder: Path) -> tuple[Phase, ...]:
    """A run's phases in the order they began, each with its workers together; a resumed run has them again.

    Raises:
        RecordError: a damaged line.
    """
    groups: list[list[PressureRecord]] = []
    current: dict[int, list[PressureRecord]] = {}
    for record in sorted(read_pressure(folder), key=lambda record: record.started_ns):
        group = current.get(record.phase)
        if group is None or any(_before(other, record) for other in group):
            groups.append(group := [])
            current[record.phase] = group
        group.append(record)
    return tuple(_phase(group) for group in groups)


def _before(one: PressureRecord, other: PressureRecord) -> bool:
    return one.worker == other.worker or (one.stopped_ns is not None and one.stopped_ns <= other.started_ns)


def _phase(workers: Sequence[PressureRecord]) -> Phase:
    stops = [worker.stopped_ns for worker in workers if worker.stopped_ns is not None]
    known = len(stops) == len(workers)
    moved = [worker.bytes_per_s for worker in workers if worker.bytes_per_s is not None]
    return Phase(
        kind=workers[0].kind,
        level=workers[0].level,
        workers=len(workers),
        began_ns=min(worker.started_ns for worker in workers),
        on_ns=max(worker.started_ns for worker in workers),
        off_ns=min(stops) if known else None,
        ended_ns=max(stops) if known else None,
        busy_share=mean([worker.busy_share for worker in workers]),
        bytes_per_s=sum(moved) if len(moved) == len(workers) else None,
    )


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that were measured; None when none was."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def edges(phase: Phase) -> list[int]:
    edges = (phase.began_ns, phase.on_ns, phase.off_ns, phase.ended_ns)
    return [edge for edge in edges if edge is not None]


def load_at(phases: Sequence[Phase], at_ns: int) -> Load | None:
    """What is on from ``at_ns``, an edge, to the next one; None where some workers of a phase are and some aren't."""
    names = []
    for phase in phases:
        if not phase.began_ns <= at_ns < (NEVER_NS if phase.ended_ns is None else phase.ended_ns):
            continue
        if phase.off_ns is None or not phase.on_ns <= at_ns < phase.off_ns:
            return None
        names.append(phase.name)
    return tuple(sorted(names))
