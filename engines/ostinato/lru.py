"""Slots that hold what was used last, kept by the host: for passes outside a captured step."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from engines.ostinato.pool import ExpertPool

# Shapes: S = slots.


class Lru:
    """Fetches experts into a pool's own slots in place of those used longest ago.

    Args:
        per_layer: each layer has an equal part of the slots, or all layers share them.
    """

    def __init__(self, pool: ExpertPool, *, per_layer: bool) -> None:
        self.pool = pool
        self.used_S = np.zeros(pool.slots, np.int64)
        """Clock of each slot's last use."""
        self.clock = 0
        layers = pool.store.layers
        bounds = np.linspace(0, pool.slots, layers + 1).astype(int).tolist()
        self.scopes = [slice(a, b) for a, b in pairwise(bounds)] if per_layer else [slice(0, pool.slots)] * layers
        """The slots of each layer."""

    def fits(self, layer: int, count: int) -> bool:
        """Whether a layer can have so many experts at once."""
        scope = self.scopes[layer]
        return count <= scope.stop - scope.start

    def bring(self, layer: int, experts: Sequence[int]) -> int:
        """Make these experts resident, in order; the copies are in order with the current stream. Returns how many
        had to be fetched."""
        pool, scope = self.pool, self.scopes[layer]
        self.clock += 1
        slots = pool.slot_LE[layer, list(experts)]
        self.used_S[slots[slots >= 0]] = self.clock
        missing = [expert for expert in dict.fromkeys(experts) if pool.slot_LE[layer, expert] < 0]
        for expert in missing:
            slot = scope.start + int(self.used_S[scope].argmin())
            pool.assign(slot, (layer, expert))
            pool.block(slot).copy_(pool.store.tensor[layer, expert], non_blocking=True)
            self.used_S[slot] = self.clock
        if missing:
            pool.publish()
        return len(missing)
