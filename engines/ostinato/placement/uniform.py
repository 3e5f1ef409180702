"""Uniform: equally many experts of every layer, the others computed by the CPU in every pass.

KTransformers' default placement (``--kt-num-gpu-experts 58 --kt-expert-placement-strategy uniform``): expert 0 of
every layer, then expert 1, and so on, without looking at how often they are chosen. Prefill computes the cold
experts on the CPU too, whatever its size, unless ``upload_threshold`` (its ``--kt-gpu-prefill-token-threshold``)
copies them from some number of tokens on. Ours differs in having no dynamic expert update unless ``ranked`` is set,
which takes each layer's most routed experts of a recording (its ``frequency`` strategy), and in never deferring
experts to a later layer, which would change the tokens.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.placement.policy import MemoryBudget, Policy, PrefillPath, upload_from
from engines.ostinato.planner.plan import round_robin
from engines.ostinato.planner.residency import mask
from engines.ostinato.planner.routes import RouteCounts


@dataclass(kw_only=True)
class Uniform(Policy):
    name: ClassVar[str] = "uniform"

    ranked: bool = False
    upload_threshold: int | None = None
    """None never copies."""

    def residents(self, budget: MemoryBudget, counts: RouteCounts | None) -> NDArray[np.bool_]:
        chosen = round_robin(budget.layers, budget.experts, budget.sizes, budget.pool_bytes)
        resident = mask(len(budget.expert_bytes), budget.experts, [chosen])
        if self.ranked and counts is not None:
            for layer in budget.layers:
                best = np.argsort(-counts.ranking_LE[layer], kind="stable")[: resident[layer].sum()]
                resident[layer] = False
                resident[layer, best] = True
        return resident

    def prefill_path(self, tokens: int) -> PrefillPath:
        return PrefillPath("split") if self.upload_threshold is None else upload_from(tokens, self.upload_threshold)
