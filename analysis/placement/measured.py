"""Predicted decode steps beside those of runs of our engine."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from analysis.placement.study import Room, Routes, Sizes
from analysis.runs import Run, read_runs
from engines.ostinato.errors import SetupError
from engines.ostinato.planner.calibration import Calibration
from engines.ostinato.planner.simulate import simulate

OURS = "ostinato"
LOG_FILE = "server.log"
_RESIDENT = re.compile(r"^(\d+) of (\d+) experts are resident", re.MULTILINE)
"""What the engine says when it has filled its slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One run."""

    run: str
    placement: str
    slots: int
    predicted_ms: float
    measured_ms: float
    """Σ (last token − first) / Σ (n − 1), at the client."""

    @property
    def error(self) -> float:
        """Predicted / measured − 1."""
        return self.predicted_ms / self.measured_ms - 1


def checks(folder: Path, routes: Routes, sizes: Sizes, calibration: Calibration) -> list[Check]:
    """Every run of our engine at or below ``folder`` that says how many experts were resident.

    Raises:
        RecordError: no runs there, or damaged ones.
        SetupError: none of our engine among them, or of another model's shape.
    """
    found = [_check(run, slots, routes, sizes, calibration) for run, slots in _ours(folder, routes)]
    if not found:
        raise SetupError(f"{folder}: no run of {OURS} that says how many experts were resident; name another folder")
    return found


def _ours(folder: Path, routes: Routes) -> Iterator[tuple[Run, int]]:
    layers, experts = routes.judged.shape
    for run in read_runs(folder):
        if run.result["engine"]["name"] != OURS or not len(run.measured):
            continue
        log = run.folders[0] / LOG_FILE
        said = _RESIDENT.findall(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else []
        if said:
            slots, total = map(int, said[-1])
            if total != layers * experts:
                raise SetupError(
                    f"{run.folders[0]}: {total:,} experts, the routes {layers * experts:,}; name runs of their model"
                )
            yield run, slots


def _check(run: Run, slots: int, routes: Routes, sizes: Sizes, calibration: Calibration) -> Check:
    options = (run.result["engine"].get("settings") or {}).get("options") or {}
    placement = str(options.get("placement") or OURS)
    gpus = len(sizes.gpus)
    each = [slots // gpus + (gpu < slots % gpus) for gpu in range(gpus)]
    room = Room(name=run.key, pool_bytes=tuple(count * max(sizes.expert_bytes) for count in each))
    outcome = simulate(
        placement,
        routes.judged,
        sizes.budgets(room, experts=routes.judged.shape[1], experts_per_token=routes.judged.experts_NLK.shape[2]),
        counts=routes.development,
        calibration=calibration,
        borrowed_bytes=sizes.borrowed_bytes,
    )
    assert outcome.decode_step_ms is not None
    turns = run.measured[run.measured["tpot_s"].notna()]
    tokens = float((turns["output_tokens"] - turns["first_chunk_tokens"].astype(float)).sum())
    return Check(
        run=run.key,
        placement=placement,
        slots=slots,
        predicted_ms=outcome.decode_step_ms,
        measured_ms=1e3 * float(turns["decode_s"].sum()) / tokens,
    )
