"""What each GPU has left for experts beside the largest forward pass (the capacity test)."""

from collections.abc import Sequence

import numpy as np
import torch

from engines.ostinato.errors import SetupError
from engines.ostinato.forward import OwnKv, TransformersKv
from engines.ostinato.planner.plan import MARGIN_BYTES


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
    forward.logits(np.arange(size).tolist(), context - size if isinstance(forward, OwnKv) else 0)
    for device in devices:
        torch.cuda.synchronize(device)
    rooms = [_left(device, vram_budget) for device in devices]
    torch.cuda.empty_cache()
    return rooms


def _left(device: torch.device, vram_budget: int | None) -> int:
    peak = torch.cuda.max_memory_allocated(device)
    free, total = torch.cuda.mem_get_info(device)
    driver = max(0, total - free - torch.cuda.memory_reserved(device))
    budget = min(vram_budget or total, free + torch.cuda.memory_reserved(device) + driver)
    left = budget - peak - min(driver, 1 << 30) - MARGIN_BYTES
    if left < 0:
        raise SetupError(
            f"{device} needs {(peak + driver + MARGIN_BYTES) / 2**30:.2f} GiB before any expert but may use "
            f"{budget / 2**30:.2f}; raise --vram-budget or lower --context or --chunk"
        )
    return int(left)
