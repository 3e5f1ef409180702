"""Decay cache: slots go to the experts with the highest decaying counts, warmed from a recording.

The dynamic expert cache of buun, a llama.cpp fork (``--moe-cache``): every access in decode raises an expert's count,
counts decay, an expert is admitted after a few uses, a number of inserts a step is not exceeded, and a start may be
warmed with a profile of earlier sessions. A miss is computed on the CPU while the cache is updated in the background.
Prefill ignores the cache. Ours differs in its constants: the paper names none, so these are ours (fields below), and
in that an insert is ready at a later token boundary, where all tables switch together.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.placement.borrowed import best_swaps
from engines.ostinato.placement.policy import MemoryBudget, Policy, PrefillPath, Swap, upload_from
from engines.ostinato.planner.plan import most_covering
from engines.ostinato.planner.residency import mask
from engines.ostinato.planner.routes import RouteCounts


@dataclass(kw_only=True)
class DecayCache(Policy):
    name: ClassVar[str] = "decay_cache"
    counts_hits: ClassVar[bool] = True

    half_life: float = 256.0
    """Decode steps after which a use counts half."""
    admit_after: float = 2.0
    """Decayed uses that an expert needs."""
    inserts: int = 2
    """Most copies per decode step."""
    upload_threshold: int = 512
    warm: bool = True
    """Start from the recorded routes, where there are any; else empty."""

    _score_LE: NDArray[np.float64] | None = field(default=None, init=False, repr=False)
    _budget: MemoryBudget | None = field(default=None, init=False, repr=False)

    def residents(self, budget: MemoryBudget, counts: RouteCounts | None) -> NDArray[np.bool_]:
        self._budget = budget
        layers = len(budget.expert_bytes)
        if counts is None or not self.warm:
            self._score_LE = np.zeros((layers, budget.experts))
            return budget.nobody
        # A use a step forever has this decayed count, so the profile weighs as much as having run for long.
        steady = 1 / (1 - 0.5 ** (1 / self.half_life))
        self._score_LE = counts.rho_LE * steady
        chosen = most_covering(counts.ranking_LE, budget.layers, budget.sizes, budget.pool_bytes)
        return mask(layers, budget.experts, [chosen])

    def prefill_path(self, tokens: int) -> PrefillPath:
        return upload_from(tokens, self.upload_threshold, residents=False)

    def after_step(
        self, uses_LE: NDArray[np.integer[Any]], resident_LE: NDArray[np.bool_], *, steps: int = 1
    ) -> list[Swap]:
        assert self._score_LE is not None, "residents() comes first"
        assert self._budget is not None
        self._score_LE *= 0.5 ** (steps / self.half_life)
        self._score_LE += uses_LE
        return best_swaps(
            self._score_LE,
            resident_LE,
            self._budget.layers,
            sizes=self._budget.sizes,
            room=self._budget.pool_bytes,
            threshold=self.admit_after,
            margin=1.0,
            most=self.inserts * steps,
        )
