"""Memory that a prefill's intermediate values take and that lies idle while a session decodes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_GROUP_BYTES = 8 << 20
"""Smaller experts are taken several at a time: PyTorch's allocator opens segments of its own for small requests."""


class Spare:
    """Room for experts in what PyTorch's allocator holds and nobody uses; the driver is not asked for more."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._taken: list[Tensor] = []
        self._groups = self._reserved = 0
        """How many groups fit while the allocator holds so many bytes."""

    @property
    def taken(self) -> bool:
        return bool(self._taken)

    def take(self, nbytes: int) -> list[Tensor]:
        """Blocks (uint8 ``[nbytes]``), to be used in order with the current stream until ``give_back``."""
        group = max(1, _GROUP_BYTES // nbytes)
        reserved = torch.cuda.memory_reserved(self._device)
        if reserved != self._reserved:
            stream = torch.cuda.current_stream(self._device).cuda_stream
            segments = [part for part in torch.cuda.memory_snapshot() if part["device"] == self._device.index]
            self._groups, self._reserved = room(segments, group * nbytes, stream), reserved
        for _ in range(self._groups):
            try:
                self._taken.append(torch.empty(group, nbytes, dtype=torch.uint8, device=self._device))
            except torch.OutOfMemoryError:  # it divides its memory otherwise, and may not take more
                self._groups = len(self._taken)
                break
        if torch.cuda.memory_reserved(self._device) > reserved:  # the same, and it took more
            self._groups, self._reserved = self._groups // 2, torch.cuda.memory_reserved(self._device)
        return [block for blocks in self._taken for block in blocks]

    def give_back(self) -> None:
        """The blocks are the allocator's again; nobody may name them any more."""
        self._taken.clear()


def room(segments: Sequence[dict[str, Any]], nbytes: int, stream: int) -> int:
    """How many requests of ``nbytes`` fit into free blocks of ``torch.cuda.memory_snapshot``'s segments."""
    return sum(
        block["size"] // nbytes
        for segment in segments
        if segment["stream"] == stream and tuple(segment.get("segment_pool_id", (0, 0))) == (0, 0)
        for block in segment["blocks"]
        if block["state"] == "inactive"
    )
