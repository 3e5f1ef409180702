"""Slots that hold what was used last, kept by the GPU itself: inside a captured step a miss is fetched on the way."""

import numpy as np
import torch
from torch import Tensor

from engines.ostinato.handover import KINDS, kernel
from engines.ostinato.lru import Lru

# Shapes: K = experts a token, L = MoE layers, E = experts, S = slots.

_FETCH_BLOCKS = 32
"""Blocks that copy a missing expert; the link is full with fewer."""


class LruSlots:
    """``Lru`` under the kernels ``admit`` and ``fetch``: between ``load`` and ``settle`` the device's tables lead."""

    def __init__(self, lru: Lru, per_token: int) -> None:
        pool, store = lru.pool, lru.pool.store
        self._lru, self._K = lru, per_token
        device = pool.device
        self._sources_LE = torch.from_numpy(store.addresses).to(device)
        self._slots_S = torch.from_numpy(pool.address_S[: pool.slots]).to(device)
        self._used_S = torch.zeros(pool.slots, dtype=torch.int64, device=device)
        self._owner_S = torch.full((pool.slots,), -1, dtype=torch.int32, device=device)
        self._clock, self._fetched = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2))
        self._copies_K = torch.zeros(per_token, dtype=torch.int64, device=device)

    def load(self) -> None:
        """Take over what the host did; whatever else the tables say is forgotten."""
        pool, experts = self._lru.pool, self._lru.pool.store.experts
        owners = [pool.owner(slot) for slot in range(pool.slots)]
        pool.publish()
        flat = [-1 if owner is None else owner[0] * experts + owner[1] for owner in owners]
        self._owner_S.copy_(torch.tensor(flat, dtype=torch.int32))
        self._used_S.copy_(torch.from_numpy(self._lru.used_S))
        self._clock.fill_(self._lru.clock)
        self._fetched.zero_()

    def admit(
        self, layer: int, ids_1K: Tensor, weights_1K: Tensor, addresses_K: Tensor, scaled_K: Tensor, uses_E: Tensor
    ) -> None:
        """Bring the token's experts into slots and say where they lie."""
        pool = self._lru.pool
        scope = self._lru.scopes[layer]
        # fmt: off
        kernel("admit")(
            (1, 1, 1), (1024, 1, 1),
            [ids_1K, weights_1K, KINDS[weights_1K.dtype], pool.table_LE, self._sources_LE, self._slots_S[scope],
             self._used_S[scope], self._owner_S[scope], self._clock, addresses_K, scaled_K, uses_E, self._copies_K,
             self._fetched, layer, self._K, pool.store.experts, scope.stop - scope.start],
        )
        # fmt: on
        chunks = pool.store.layout.nbytes // 16
        kernel("fetch")((_FETCH_BLOCKS, self._K, 1), (512, 1, 1), [self._copies_K, addresses_K, chunks])

    def settle(self) -> int:
        """Let the host follow; returns the experts fetched since ``load``."""
        lru, pool = self._lru, self._lru.pool
        owners: np.ndarray = self._owner_S.cpu().numpy()
        for slot in range(pool.slots):
            pool.assign(slot, None)
        for slot, owner in enumerate(owners.tolist()):
            if owner >= 0:
                pool.assign(slot, divmod(owner, pool.store.experts))
        lru.used_S[:] = self._used_S.cpu().numpy()
        lru.clock = int(self._clock)
        return int(self._fetched)
