"""Stream: whole layers are copied to the GPU every time a pass reaches them.

vLLM's ``--cpu-offload-gb``: the weights of the first layers stay in host memory up to a number of GB, and each
forward pass, prefill or decode, copies them when it gets there, chosen experts or not; the CPU computes nothing.
Ours differs in offloading experts only, whole layers of them, where vLLM counts every parameter and may stop within
a layer.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.placement.policy import MemoryBudget, Miss, Policy, PrefillPath, first_fit
from engines.ostinato.planner.routes import RouteCounts


@dataclass(kw_only=True)
class Stream(Policy):
    name: ClassVar[str] = "stream"
    miss: ClassVar[Miss] = "stream"

    def residents(self, budget: MemoryBudget, counts: RouteCounts | None) -> NDArray[np.bool_]:  # noqa: ARG002
        return first_fit(budget.layers[::-1], budget)

    def prefill_path(self, tokens: int) -> PrefillPath:  # noqa: ARG002
        return PrefillPath("stream")
