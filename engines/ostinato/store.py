"""Every expert of a model in host memory, one contiguous block each: the only copy besides the resident ones."""

import mmap
import weakref
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from engines.ostinato.errors import SetupError
from engines.ostinato.expert_layout import ExpertLayout

_HUGE_PAGE = 2 << 20


class ExpertStore:
    """Blocks ``[L, E]`` in one anonymous mapping on huge pages.

    Anonymous rather than mapped from the files: an expert's three matrices then lie side by side (one copy uploads
    them), on pages of 2 MB, and the kernel can drop the files' pages, so that memory holds the experts once.

    Args:
        layers: the MoE layers, in order, counted from 0.
    """

    def __init__(self, layout: ExpertLayout, *, layers: int, experts: int) -> None:
        self.layout = layout
        self.layers, self.experts = layers, experts
        size = layers * experts * layout.nbytes
        try:
            self._map = mmap.mmap(-1, size + _HUGE_PAGE)
        except (OSError, ValueError, OverflowError) as error:
            raise SetupError(
                f"the model's experts need {size / 2**30:.1f} GiB of host memory, which can't be had; "
                "free some, or serve a smaller model"
            ) from error
        with suppress(OSError):  # a kernel without transparent huge pages
            self._map.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(self._map, np.uint8)
        shift = -whole.ctypes.data % _HUGE_PAGE
        self.bytes = whole[shift : shift + size].reshape(layers, experts, layout.nbytes)
        """uint8 ``[L, E, nbytes]``."""
        base = self.bytes.ctypes.data
        self.addresses = base + layout.nbytes * np.arange(layers * experts, dtype=np.int64).reshape(layers, experts)
        """int64 ``[L, E]``: where each block starts."""
        self.tensor: Tensor = torch.from_numpy(self.bytes)
        self._pinned = False

    @property
    def nbytes(self) -> int:
        return self.bytes.nbytes

    def part(self, layer: int, expert: int, name: str) -> np.ndarray:
        """The bytes of one matrix of one expert, writable."""
        offset, size = self.layout.parts[name]
        return self.bytes[layer, expert, offset : offset + size]

    def pin(self) -> None:
        """Page-lock everything, so that copies to a GPU run at the link's speed and a kernel can read it.

        Raises:
            SetupError: the limit on locked memory is too low.
        """
        code = torch.cuda.cudart().cudaHostRegister(self.bytes.ctypes.data, self.nbytes, 0)
        if int(code) != 0:
            raise SetupError(
                f"{self.nbytes / 2**30:.1f} GiB of experts can't be page-locked (CUDA error {int(code)}); "
                "raise the limit on locked memory: ulimit -l unlimited, or --ulimit memlock=-1 for a container"
            )
        self._pinned = True
        # Also where nobody closes: the driver keeps a registration of memory that is gone.
        self._unpin = weakref.finalize(self, torch.cuda.cudart().cudaHostUnregister, self.bytes.ctypes.data)

    @property
    def pinned(self) -> bool:
        return self._pinned

    def gather(self, layer: int, experts: Sequence[int], into: Tensor) -> None:
        """Copy blocks into the first rows of ``into`` (uint8 ``[n, nbytes]``) on its current stream."""
        for row, expert in enumerate(experts):
            into[row].copy_(self.tensor[layer, expert], non_blocking=True)

    def close(self) -> None:
        """Unlock the memory."""
        if self._pinned:
            self._unpin()
            self._pinned = False
