"""The kernels of handover.cu, compiled when the engine starts, and the page-locked memory they share with the CPU."""

from functools import cache
from pathlib import Path
from typing import Any

import torch

from engines.ostinato.cpu.library import MAILBOX_HEADER, Mailbox

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""How the kernels call a type."""
_SOURCE = Path(__file__).with_name("handover.cu")


@cache
def kernel(name: str) -> Any:
    """One kernel of handover.cu for the current GPU: called with ``grid``, ``block`` and ``args``."""
    compile_kernel: Any = torch.cuda._compile_kernel  # noqa: SLF001 - PyTorch's own NVRTC; needs no CUDA toolkit
    return compile_kernel(_SOURCE.read_text(encoding="utf-8"), name)


class Post:
    """A mailbox that both sides reach.

    Args:
        hidden: values of the layer input; ``itemsize`` bytes each.
    """

    def __init__(self, hidden: int, itemsize: int) -> None:
        self.request = torch.zeros(MAILBOX_HEADER + hidden * itemsize, dtype=torch.uint8, pin_memory=True)
        self.response = torch.zeros(MAILBOX_HEADER + hidden * 4, dtype=torch.uint8, pin_memory=True)

    @property
    def mailbox(self) -> Mailbox:
        return Mailbox(self.request.data_ptr(), self.response.data_ptr())

    def clear(self) -> None:
        """Both sides start from sequence 0 again; nobody may be waiting."""
        self.request.zero_()
        self.response.zero_()
