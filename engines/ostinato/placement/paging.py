"""Paging: every chosen expert is brought into the layer's slots before the layer runs; the CPU computes nothing.

The method of WiSP (routing-aware working-set paging): each layer has equally many slots (the cap C), a miss copies
the expert in place of the layer's least recently used one, and a pass whose experts exceed the cap is worked off in
groups of tokens. How many bytes the slots and the KV cache get is a decision of its own (``kv_split``), which
``online`` revises between requests. Ours differs in its engine: WiSP is a plug-in for vLLM, here decode and prefill
run on Ostinato's kernels, one session at a time, so that a KV cache beyond the admission floor is never of use.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.errors import SetupError
from engines.ostinato.placement.kv_split import RULES, OnlineResize, Split, SplitBudget, split
from engines.ostinato.placement.policy import MemoryBudget, Miss, Policy, PrefillPath
from engines.ostinato.planner.routes import RouteCounts


@dataclass(kw_only=True)
class Paging(Policy):
    """Raises: SetupError: a split that does not exist."""

    name: ClassVar[str] = "paging"
    miss: ClassVar[Miss] = "fetch"
    lru_scope: ClassVar[Literal["gpu", "layer"] | None] = "layer"
    prefill_updates_cache: ClassVar[bool] = True

    kv_split: str = "mv_wsa"
    """``fixed``, ``50_50`` or ``mv_wsa``."""
    kv_blocks: int | None = None
    """For ``fixed``; None takes what the context needs."""
    online: bool = False
    """Resize both pools between requests."""
    headroom: float = 0.125

    def __post_init__(self) -> None:
        if self.kv_split == "5050":  # as YAML and Hydra read 50_50: a number
            self.kv_split = "50_50"
        if self.kv_split not in RULES:
            raise SetupError(f"kv_split={self.kv_split} is none; choose one of {', '.join(RULES)}")

    def residents(self, budget: MemoryBudget, counts: RouteCounts | None) -> NDArray[np.bool_]:  # noqa: ARG002
        return budget.nobody

    def prefill_path(self, tokens: int) -> PrefillPath:  # noqa: ARG002
        return PrefillPath("fetch")

    def split(self, budget: SplitBudget, *, expert_misses: Sequence[float] = ()) -> Split:
        """How the bytes are split at the start.

        Args:
            expert_misses: m(C) for C = 0, 1, …, where routes were recorded step by step (planner/reuse.py); without
                them ``mv_wsa`` gives experts all that the floor leaves.
        """
        rule = next(rule for rule in RULES if rule == self.kv_split)
        return split(budget, rule, fixed_blocks=self.kv_blocks, expert_misses=expert_misses)

    def controller(self, budget: SplitBudget) -> OnlineResize | None:
        """Decides at drained barriers; None where the split stays."""
        return OnlineResize(budget=budget, headroom=self.headroom) if self.online else None
