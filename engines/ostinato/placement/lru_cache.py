"""LRU cache: a GPU's slots hold the experts that small passes used last.

llama.cpp's expert cache (``--moe-cache-mib``, pull request 29887, also in ik_llama.cpp): one cache a device, shared
by its layers; a decode step or another pass of up to 32 tokens copies the experts it misses in place of the least
recently used ones, and the GPU computes everything; larger passes skip the cache, which they would evict, and
compute all their experts on the CPU, cached or not, up to the upload threshold, from which they copy each distinct
expert. Ours starts empty, as theirs does, even where routes were recorded. It differs in that a pass of 2 to 32
tokens that needs more experts than there are slots is worked off in groups of tokens.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.placement.policy import MemoryBudget, Miss, Policy, PrefillPath, upload_from
from engines.ostinato.planner.routes import RouteCounts


@dataclass(kw_only=True)
class LruCache(Policy):
    name: ClassVar[str] = "lru_cache"
    miss: ClassVar[Miss] = "fetch"
    lru_scope: ClassVar[Literal["gpu", "layer"] | None] = "gpu"
    prefill_updates_cache: ClassVar[bool] = True
    """Only passes that take the path ``fetch``."""

    largest_pass: int = 32
    """Tokens up to which a pass uses the cache."""
    upload_threshold: int = 512

    def residents(self, budget: MemoryBudget, counts: RouteCounts | None) -> NDArray[np.bool_]:  # noqa: ARG002
        return budget.nobody

    def prefill_path(self, tokens: int) -> PrefillPath:
        if tokens <= self.largest_pass:
            return PrefillPath("fetch")
        return upload_from(tokens, self.upload_threshold, residents=False)
