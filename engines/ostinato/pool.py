"""Expert slots on a device and the index tables that say which expert lies where."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from engines.ostinato.store import ExpertStore

# Shapes: L = MoE layers, E = experts a layer, S = slots.

Expert = tuple[int, int]
"""(MoE layer, expert)."""


class ExpertPool:
    """Slots shared by all layers of a device; any expert may lie in any slot.

    Tables change in stream order, so that a captured step sees either the old or the new ones, never a mixture.

    Args:
        lent: memory (uint8 ``[n, nbytes]``) that decode may use as further slots; a prefill needs it back.
        cold_LE: what the table says of cold experts, 0 unless they have an address that kernels may read.
    """

    def __init__(
        self,
        store: ExpertStore,
        device: torch.device,
        slots: int,
        *,
        lent: Tensor | None = None,
        cold_LE: np.ndarray | None = None,
    ) -> None:
        self.store, self.device, self.slots = store, device, slots
        self.blocks = torch.empty(max(slots, 1), store.layout.nbytes, dtype=torch.uint8, device=device)
        """uint8 ``[slots, nbytes]``."""
        memory = [self.blocks[:slots], *([lent] if lent is not None else [])]
        self._blocks_S = [block for part in memory for block in part]
        self.address_S = np.array([block.data_ptr() for block in self._blocks_S], np.int64)
        """int64 ``[S]``: own slots first, then lent ones."""
        self.reads_host = cold_LE is not None
        """Whether kernels find cold experts through the table, in host memory."""
        self._cold_LE = np.zeros((store.layers, store.experts), np.int64) if cold_LE is None else cold_LE
        self.slot_LE = np.full((store.layers, store.experts), -1, np.int64)
        """Slot of each expert, -1 where it has none."""
        self.table_LE: Tensor = torch.zeros(store.layers, store.experts, dtype=torch.int64, device=device)
        """Address of each resident expert's block, as kernels read it."""
        self._owner_S: list[Expert | None] = [None] * len(self._blocks_S)
        self._always = len(self._blocks_S)
        self.publish()

    @property
    def resident_LE(self) -> np.ndarray:
        """bool ``[L, E]``; in a lent slot counts."""
        return self.slot_LE >= 0

    @property
    def lent(self) -> range:
        """The slots in lent memory."""
        return range(self.slots, len(self._owner_S))

    def lend(self, blocks: Sequence[Tensor]) -> None:
        """Further lent slots (uint8 ``[nbytes]`` each), empty, until ``take_back``."""
        self._blocks_S += blocks
        self._owner_S += [None] * len(blocks)
        self.address_S = np.append(self.address_S, [block.data_ptr() for block in blocks]).astype(np.int64)

    def take_back(self) -> None:
        """Forget what ``lend`` brought; nobody lies there any more."""
        assert not any(self._owner_S[self._always :])
        del self._blocks_S[self._always :], self._owner_S[self._always :]
        self.address_S = self.address_S[: self._always]

    def owner(self, slot: int) -> Expert | None:
        return self._owner_S[slot]

    def free(self, slots: Iterable[int]) -> list[int]:
        """Those without an expert."""
        return [slot for slot in slots if self._owner_S[slot] is None]

    def block(self, slot: int) -> Tensor:
        """A slot's memory."""
        found: Tensor = self._blocks_S[slot]
        return found

    def fill(self, experts: Iterable[Expert]) -> None:
        """Make exactly these experts resident, in the own slots from 0 on."""
        wanted = list(experts)
        assert len(wanted) <= self.slots
        self.slot_LE[:] = -1
        self._owner_S = [None] * len(self._owner_S)
        for slot, (layer, expert) in enumerate(wanted):
            self._blocks_S[slot].copy_(self.store.tensor[layer, expert], non_blocking=True)
            self.assign(slot, (layer, expert))
        self.publish()

    def assign(self, slot: int, expert: Expert | None) -> None:
        """Say that a slot now holds an expert (its bytes are there, or will be before the next pass), or none."""
        before = self._owner_S[slot]
        if before is not None:
            self.slot_LE[before] = -1
        self._owner_S[slot] = expert
        if expert is not None:
            assert self.slot_LE[expert] < 0, "an expert has one slot"
            self.slot_LE[expert] = slot

    def publish(self) -> None:
        """Write the table, in order with what the current stream was given."""
        resident = self.resident_LE
        table = self._cold_LE.copy()
        table[resident] = self.address_S[self.slot_LE[resident]]
        source = torch.from_numpy(table)
        if self.device.type == "cuda":
            source = source.pin_memory()
        self.table_LE.copy_(source, non_blocking=True)

    def addresses(self, layer: int, experts: Sequence[int] | np.ndarray) -> np.ndarray:
        """int64 addresses of resident experts' blocks."""
        found: np.ndarray = self.address_S[self.slot_LE[layer, experts]] if len(experts) else np.zeros(0, np.int64)
        return found
