"""Layers: the experts of a layer are all on the GPU, or all in host memory.

What llama.cpp does by default (``-ngl 999`` with ``-ncmoe N`` or its automatic fit): the first N layers keep their
experts in host memory and the others are whole on the GPU. A layer in host memory is computed by the CPU in decode
and in passes below the upload threshold (``GGML_OP_OFFLOAD_MIN_BATCH``; the paper found 512 best), and copied for
larger ones, each distinct expert of the pass once. Ours differs in that the CPU and the GPU branch run the same
kernels as every other policy; as there, only one of the two has work in a layer.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.placement.policy import MemoryBudget, Policy, PrefillPath, first_fit, upload_from
from engines.ostinato.planner.routes import RouteCounts


@dataclass(kw_only=True)
class Layers(Policy):
    name: ClassVar[str] = "layers"

    upload_threshold: int = 512
    """Tokens from which a layer in host memory is copied."""

    def residents(self, budget: MemoryBudget, counts: RouteCounts | None) -> NDArray[np.bool_]:  # noqa: ARG002
        return first_fit(budget.layers[::-1], budget)

    def prefill_path(self, tokens: int) -> PrefillPath:
        return upload_from(tokens, self.upload_threshold)
