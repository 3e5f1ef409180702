"""Uploads of a pass: two halves of a buffer, one filled while the other is computed from, and a part for what the
next layer will most likely need, filled before its routes are known.
"""

from collections.abc import Iterator

import numpy as np
import torch

from engines.ostinato.store import ExpertStore


class Staging:
    """Copies experts to the device on a stream of its own.

    Args:
        slots: how many experts the two halves hold together.
        ahead: how many of the next layer's experts are copied before its routes are known.
    """

    def __init__(self, store: ExpertStore, device: torch.device, slots: int, ahead: int = 0) -> None:
        assert slots >= 2
        self.store, self.device, self.ahead = store, device, ahead
        self.half = slots // 2
        self.blocks = torch.empty(2 * self.half + 2 * ahead, store.layout.nbytes, dtype=torch.uint8, device=device)
        """uint8 ``[n, nbytes]``: the halves, then twice the part for the next layer."""
        on_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if on_gpu else None
        self._free, self._ready = ([torch.cuda.Event() for _ in range(4)] if on_gpu else [] for _ in range(2))
        self._layer = self._started = 0
        self._experts = self._early = np.zeros(0, np.int64)
        self._next = 0
        """Half that is filled next."""
        self._early_layer = -1

    def start(self, layer: int, experts: np.ndarray) -> None:
        """Begin with the first wave at once; the rest follows as ``waves`` is walked."""
        self._layer, self._experts, self._started = layer, experts, 0
        if len(experts):
            self._copy()

    def waves(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(experts, addresses) in order; a wave is used on the current stream before the next is asked for."""
        done = 0
        half = (self._next - 1) % 2
        while done < len(self._experts):
            wave = self._experts[done : done + self.half]
            if self._started < len(self._experts):
                self._copy()
            yield wave, self._use(half, half * self.half, len(wave))
            self._leave(half)
            done += len(wave)
            half = 1 - half

    def start_early(self, layer: int, experts: np.ndarray) -> None:
        """Copy what a coming layer will most likely need, behind what was begun."""
        self._early_layer, self._early = layer, experts[: self.ahead]
        part = layer % 2
        self._fill(2 + part, 2 * self.half + part * self.ahead, layer, self._early.tolist())

    def early(self, layer: int) -> np.ndarray:
        """The experts of this layer that were copied before."""
        return self._early if layer == self._early_layer else self._early[:0]

    def early_addresses(self) -> np.ndarray:
        """Of the last ``early`` experts; call ``leave_early`` once they are used."""
        part = self._early_layer % 2
        return self._use(2 + part, 2 * self.half + part * self.ahead, len(self._early))

    def leave_early(self) -> None:
        """They are used, in order with the current stream."""
        self._leave(2 + self._early_layer % 2)

    def forget(self) -> None:
        """Nothing copied early counts any more: the buffers were used for something else."""
        self._early_layer = -1

    def _copy(self) -> None:
        wave = self._experts[self._started : self._started + self.half].tolist()
        self._fill(self._next, self._next * self.half, self._layer, wave)
        self._started += len(wave)
        self._next = 1 - self._next

    def _fill(self, part: int, first: int, layer: int, experts: list[int]) -> None:
        if self._stream is None:
            self.store.gather(layer, experts, self.blocks[first:])
            return
        self._stream.wait_event(self._free[part])
        with torch.cuda.stream(self._stream):
            self.store.gather(layer, experts, self.blocks[first:])
            self._ready[part].record()

    def _use(self, part: int, first: int, count: int) -> np.ndarray:
        if self._stream is not None:
            torch.cuda.current_stream().wait_event(self._ready[part])
        nbytes = self.store.layout.nbytes
        addresses: np.ndarray = self.blocks.data_ptr() + nbytes * (first + np.arange(count, dtype=np.int64))
        return addresses

    def _leave(self, part: int) -> None:
        if self._stream is not None:
            self._free[part].record()
