"""What each GPU has left for experts beside the largest pass (the capacity test), and that no more is taken."""

from collections.abc import Sequence

import numpy as np
import torch

from engines.ostinato.errors import SetupError
from engines.ostinato.forward import OwnKv, TransformersKv
from engines.ostinato.planner.plan import MARGIN_BYTES

_DRIVER_BYTES = 1 << 30
"""What a CUDA context takes at most; more than that is other programs'."""
_LATER_BYTES = 128 << 20
"""For what the driver takes after the start: kernels are loaded when they are first used."""


def room_bytes(
    devices: Sequence[torch.device],
    forward: OwnKv | TransformersKv,
    *,
    chunk: int,
    context: int,
    vram_budget: int | None,
) -> list[int]:
    """For each GPU, measured with a pass at the end of the context.

    Args:
        chunk: most tokens of a pass.
        vram_budget: bytes that may be used of each; None: all that is free.

    Raises:
        SetupError: a GPU is too small for anything.
    """
    for device in devices:
        torch.cuda.reset_peak_memory_stats(device)
    size = min(chunk, context)
    ids = np.arange(size) % forward.model.config.vocab_size
    forward.logits(ids.tolist(), context - size if isinstance(forward, OwnKv) else 0)
    for device in devices:
        torch.cuda.synchronize(device)
    rooms = [_left(device, vram_budget) for device in devices]
    torch.cuda.empty_cache()
    return rooms


def hold(devices: Sequence[torch.device], vram_budget: int | None) -> None:
    """Keep PyTorch's allocator within the budget: at its bound it gives idle memory back and asks again.

    Passes of many sizes leave it holding more than the largest one uses.

    Args:
        vram_budget: bytes that may be used of each, the driver's among them; None: all that is free.
    """
    for device in devices:
        total = torch.cuda.mem_get_info(device)[1]
        most = total if vram_budget is None else vram_budget - min(_driver(device), _DRIVER_BYTES) - _LATER_BYTES
        torch.cuda.set_per_process_memory_fraction(min(1.0, max(0, most) / total), device)


def _driver(device: torch.device) -> int:
    """Bytes in use that are not PyTorch's."""
    free, total = torch.cuda.mem_get_info(device)
    return max(0, total - free - torch.cuda.memory_reserved(device))


def _left(device: torch.device, vram_budget: int | None) -> int:
    peak = torch.cuda.max_memory_allocated(device)
    free, total = torch.cuda.mem_get_info(device)
    driver = _driver(device)
    budget = min(vram_budget or total, free + torch.cuda.memory_reserved(device) + driver)
    left = budget - peak - min(driver, _DRIVER_BYTES) - MARGIN_BYTES
    if left < 0:
        raise SetupError(
            f"{device} needs {(peak + driver + MARGIN_BYTES) / 2**30:.2f} GiB before any expert but may use "
            f"{budget / 2**30:.2f}; raise --vram-budget or lower --context or --chunk"
        )
    return int(left)
