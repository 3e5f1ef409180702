"""One GPU budget between resident experts and the KV cache (WiSP, sections 3.3 to 3.5).

The bytes beyond dense weights and buffers are split into C expert slots a layer and κ blocks of keys and values.
Three ways to split them at the start, and a controller that moves the boundary between requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.errors import SetupError

# Shapes: C = expert slots a layer, κ = KV blocks.

Rule = Literal["fixed", "50_50", "mv_wsa"]
RULES: tuple[Rule, ...] = ("fixed", "50_50", "mv_wsa")


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitBudget:
    """What is to be split on one GPU."""

    bytes: int
    """B: for both pools together."""
    cap_bytes: int
    """a: one more expert slot in every layer."""
    block_bytes: int
    """b: one more KV block, in all layers."""
    block_tokens: int
    context: int
    """Longest prompt and output together, tokens."""
    sequences: int = 1
    """W: how many such sequences must find room at once."""
    experts: int
    """Of a layer: more slots than that are of no use."""

    @property
    def floor_blocks(self) -> int:
        """κmin = W·ceil(ctx / block): fewer blocks can't admit what was promised (the admission floor)."""
        return self.sequences * -(-self.context // self.block_tokens)


@dataclass(frozen=True, slots=True)
class Split:
    caps: int
    """C: expert slots a layer."""
    blocks: int
    """κ: KV blocks."""


def split(
    budget: SplitBudget,
    rule: Rule,
    *,
    fixed_blocks: int | None = None,
    expert_misses: Sequence[float] = (),
    kv_misses: Sequence[float] = (),
    expert_miss_ms: float = 1.0,
    kv_miss_ms: float = 1.0,
) -> Split:
    """The split that a run starts with.

    Args:
        rule: ``fixed`` gives KV the floor (or ``fixed_blocks``); ``50_50`` halves the bytes; ``mv_wsa`` moves bytes
            to where one more removes most waiting.
        expert_misses: m(C) for C = 0, 1, …: misses with C slots a layer, from reuse distances.
        kv_misses: m(κ) for κ = 0, 1, … likewise; empty where every sequence fits, as with one session at a time:
            blocks beyond the floor are then worth nothing.
        expert_miss_ms, kv_miss_ms: what one miss costs.

    Raises:
        SetupError: the floor and one slot a layer do not fit, or ``fixed_blocks`` lies below the floor.
    """
    most_caps = (budget.bytes - budget.floor_blocks * budget.block_bytes) // budget.cap_bytes
    if most_caps < 1:
        raise SetupError(
            f"{budget.bytes / 2**30:.2f} GiB hold no expert slot beside the KV cache of {budget.context} tokens; "
            "raise --vram-budget or lower --context"
        )
    if rule == "50_50":
        wanted = budget.bytes // 2 // budget.cap_bytes
    elif rule == "fixed":
        blocks = budget.floor_blocks if fixed_blocks is None else fixed_blocks
        if blocks < budget.floor_blocks:
            raise SetupError(
                f"kv_blocks={blocks} can't admit {budget.context} tokens; set at least {budget.floor_blocks}"
            )
        wanted = (budget.bytes - blocks * budget.block_bytes) // budget.cap_bytes
    else:
        wanted = equimarginal(
            budget,
            np.asarray(expert_misses, np.float64) * expert_miss_ms,
            np.asarray(kv_misses, np.float64) * kv_miss_ms,
        )
    return _clamped(budget, min(wanted, most_caps))


def equimarginal(budget: SplitBudget, expert_ms: NDArray[np.float64], kv_ms: NDArray[np.float64]) -> int:
    """The C that minimises T = c_exp·m_exp(C) + c_kv·m_kv(κ) over all splits of the bytes.

    Where both curves are convex, this is where a byte is worth the same on either side; the search also holds where
    they are not. Of equals the largest C.
    """
    caps = np.arange(min(budget.bytes // budget.cap_bytes, budget.experts) + 1)
    blocks = (budget.bytes - caps * budget.cap_bytes) // budget.block_bytes
    total = _at(expert_ms, caps) + _at(kv_ms, blocks)
    return int(caps[len(total) - 1 - int(np.argmin(total[::-1]))])


def _at(curve: NDArray[np.float64], index: NDArray[np.int64]) -> NDArray[np.float64]:
    if not len(curve):
        return np.zeros(len(index))
    return curve[np.minimum(index, len(curve) - 1)]


def _clamped(budget: SplitBudget, caps: int) -> Split:
    caps = max(1, min(caps, budget.experts))
    return Split(caps=caps, blocks=(budget.bytes - caps * budget.cap_bytes) // budget.block_bytes)


@dataclass(kw_only=True)
class OnlineResize:
    """Moves the boundary when no request holds a block (WiSP, section 3.5).

    KV keeps the highest occupancy of the last rounds and some headroom, never less than the floor; experts get the
    rest. A move smaller than the hysteresis band is not worth the copying. Whoever applies it shrinks one side first.
    """

    budget: SplitBudget
    headroom: float = 0.125
    """Blocks beyond the peak, as a share of it."""
    hysteresis_caps: int = 1
    """Moves of up to that many slots a layer are not made."""

    def resize(self, now: Split, peak_blocks: int) -> Split:
        """The split to take at this barrier; ``now`` where nothing should move.

        Args:
            peak_blocks: most blocks in use at once since the last barrier.
        """
        wanted = max(self.budget.floor_blocks, int(np.ceil(peak_blocks * (1 + self.headroom))))
        caps = (self.budget.bytes - wanted * self.budget.block_bytes) // self.budget.cap_bytes
        if caps < 1 or (now.blocks >= wanted and abs(caps - now.caps) <= self.hysteresis_caps):
            return now
        return _clamped(self.budget, caps)
