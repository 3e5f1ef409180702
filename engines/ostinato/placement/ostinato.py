"""Ostinato: the most frequently routed experts of a GPU's layers together, resident in every forward pass.

The method of the Ostinato paper (sections 3.2 to 3.4). The residency set is ranked by the routes of development
sessions and fixed; decode computes cold experts on the CPU beside the GPU; a prefill below the calibrated threshold
Np splits its routes, a larger one uploads each distinct cold expert once; decode borrows the prefill's buffers for
more experts. Beyond the paper: Np is where the paths cross on this machine, not 512, and ``auto`` may choose
``cooperative``, which shares the cold experts of a pass between the CPU and the upload.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.errors import SetupError
from engines.ostinato.placement.policy import Kind, MemoryBudget, Policy, PrefillPath
from engines.ostinato.planner.plan import most_covering, round_robin
from engines.ostinato.planner.residency import mask
from engines.ostinato.planner.routes import RouteCounts

PAPER_THRESHOLD = 512
"""Np of the paper's machine, for want of a calibration."""
_FIXED: dict[str, Kind] = {"split": "split", "upload": "upload", "cooperative": "cooperative"}


@dataclass(kw_only=True)
class Ostinato(Policy):
    """Raises: SetupError: a prefill path that does not exist."""

    name: ClassVar[str] = "ostinato"

    borrow: bool = True
    prefill: str = "auto"
    """``auto`` (the fastest measured one; ``cooperative`` where none was), ``paper`` (split or upload), ``split``,
    ``upload``, ``cooperative``, or ``native``: passes that ignore the residents, as the engine it is compared with
    in the ablation."""

    def __post_init__(self) -> None:
        if self.prefill not in (*_FIXED, "auto", "paper", "native"):
            raise SetupError(
                f"prefill={self.prefill} is no path; choose auto, paper, split, upload, cooperative or native"
            )

    def residents(self, budget: MemoryBudget, counts: RouteCounts | None) -> NDArray[np.bool_]:
        if counts is None:
            chosen = round_robin(budget.layers, budget.experts, budget.sizes, budget.pool_bytes)
        else:
            chosen = most_covering(counts.ranking_LE, budget.layers, budget.sizes, budget.pool_bytes)
        return mask(len(budget.expert_bytes), budget.experts, [chosen])

    def prefill_path(self, tokens: int) -> PrefillPath:
        if self.prefill in _FIXED:
            return PrefillPath(_FIXED[self.prefill])
        measured = self.calibration is not None and bool(self.calibration.prefill)
        if self.prefill == "auto" and measured:
            assert self.calibration is not None
            return PrefillPath(_FIXED[self.calibration.best_path(tokens)])
        if self.prefill == "auto":
            return PrefillPath("cooperative")  # balanced with what the engine measures when it starts
        threshold = PAPER_THRESHOLD
        if measured:
            assert self.calibration is not None
            threshold = self.calibration.threshold() or tokens + 1  # uploading never won: split
        return PrefillPath("split" if tokens < threshold else "upload", residents=self.prefill != "native")
