"""Experts that change slots while a session decodes: copied beside the steps, in force from a token boundary on.

A slot's old owner goes out of the table first; once the steps that may still read it are done, the copy begins on a
stream of its own; once it has ended, the new owner enters the table. Steps already given to the GPU keep the table
they were given with.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engines.ostinato.placement.policy import Swap
from engines.ostinato.pool import ExpertPool


@dataclass(frozen=True, slots=True)
class _Move:
    swap: Swap
    slot: int
    arrived: Any
    """A CUDA event; None where copies are done at once."""


class Moves:
    """Copies under way into some of a pool's slots."""

    def __init__(self, pool: ExpertPool, slots: range) -> None:
        self._pool, self.slots = pool, slots
        self._stream = torch.cuda.Stream(pool.device) if pool.device.type == "cuda" else None
        self._under_way: list[_Move] = []
        self.done = 0
        """Experts that arrived, since the engine started."""

    @property
    def pending(self) -> list[Swap]:
        """Under way."""
        return [move.swap for move in self._under_way]

    def start(self, swaps: Sequence[Swap]) -> None:
        """Begin copies; what they replace is cold from the next step given to the GPU on."""
        pool = self._pool
        taken = {move.slot for move in self._under_way}
        places = []
        for swap in swaps:
            if swap.out is not None:
                slot = int(pool.slot_LE[swap.out])
                pool.assign(slot, None)
            else:
                slot = next(slot for slot in pool.free(self.slots) if slot not in taken)
            taken.add(slot)
            places.append((swap, slot))
        if any(swap.out is not None for swap in swaps):
            pool.publish()
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(pool.device))
        for swap, slot in places:
            source = pool.store.tensor[swap.layer, swap.expert]
            if self._stream is None:
                pool.block(slot).copy_(source)
                self._under_way.append(_Move(swap, slot, None))
                continue
            with torch.cuda.stream(self._stream):
                pool.block(slot).copy_(source, non_blocking=True)
                event = torch.cuda.Event()
                event.record()
            self._under_way.append(_Move(swap, slot, event))

    def join(self, joined: Callable[[Swap], None] = lambda _swap: None, *, wait: bool = False) -> list[Swap]:
        """Let what has arrived enter the table, before the next step is given to the GPU.

        Args:
            wait: for all of it.
        """
        arrived = []
        for move in list(self._under_way):
            if move.arrived is not None:
                if wait:
                    move.arrived.synchronize()
                elif not move.arrived.query():
                    break
            self._under_way.remove(move)
            self._pool.assign(move.slot, (move.swap.layer, move.swap.expert))
            arrived.append(move.swap)
            joined(move.swap)
        if arrived:
            self.done += len(arrived)
            self._pool.publish()
        return arrived

    def clear(self) -> None:
        """Wait for copies under way and empty the slots."""
        self.join(wait=True)
        for slot in self.slots:
            self._pool.assign(slot, None)
        self._pool.publish()
