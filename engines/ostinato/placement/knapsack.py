"""ATSInfer's two schedules: which tensors stay on the GPU, and which are copied there for one round.

Tensors stand in execution order; a switch of device between neighbours costs a transfer of activations.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Shapes: n = tensors, M = units of memory.

Floats = NDArray[np.float64]


def place(
    sizes: Sequence[int], gains_ms: Sequence[float], switch_ms: Sequence[float], capacity: int
) -> NDArray[np.bool_]:
    """Static placement (section 4.3): maximise Σ gains on the GPU − Σ switches, within the capacity.

    Dynamic program over (tensor, memory used, device), O(n·M), as ATSInfer's algorithm 1.

    Args:
        sizes: of each tensor, in units of memory (ATSInfer: MB).
        gains_ms: r = t_cpu − t_gpu of each.
        switch_ms: c between tensor i − 1 and i, ``[n]``; the first is not used.

    Returns: which tensors are on the GPU, ``[n]``.
    """
    n, room = len(sizes), max(capacity, 0)
    # value[d][m]: best so far with m units used at most and the last tensor on device d (1 is the GPU).
    value = [np.zeros(room + 1), np.full(room + 1, -np.inf)]
    choices = np.zeros((n, 2, room + 1), np.int8)
    for i in range(n):
        switch = switch_ms[i] if i else 0.0
        before = [np.stack([value[0], value[1] - switch]), np.stack([value[0] - switch, value[1]])]
        if not i:
            before = [np.stack([np.zeros(room + 1), np.full(room + 1, -np.inf)])] * 2
        choices[i, 0] = before[0].argmax(0)
        on_cpu = before[0].max(0)
        best, size = before[1].max(0), sizes[i]
        on_gpu = np.full(room + 1, -np.inf)
        if size <= room:
            on_gpu[size:] = best[: room + 1 - size] + gains_ms[i]
            choices[i, 1, size:] = before[1].argmax(0)[: room + 1 - size]
        value = [on_cpu, on_gpu]
    chosen, used = np.zeros(n, bool), room
    device = int(n > 0 and value[1][room] > value[0][room])
    for i in reversed(range(n)):
        chosen[i] = device == 1
        previous = int(choices[i, device, used])
        used -= sizes[i] if device else 0
        device = previous
    return chosen


def promote(
    resident: NDArray[np.bool_], cpu_ms: Floats, gpu_ms: Floats, switch_ms: Floats, transfer_ms: Floats
) -> NDArray[np.bool_]:
    """Dynamic transfer (section 4.4): where each tensor runs in the next round, true for the GPU, ``[n]``.

    A tensor of the host may be copied while its predecessors run; only what they don't hide delays the round. The
    copy starts after a tensor that ran on the CPU (or with the round), and those in between run where they are by
    default. Dynamic program over (tensor, device), O(n²), as ATSInfer's algorithm 2.

    Args:
        resident: where each tensor is by default, true for the GPU.
        cpu_ms, gpu_ms: recent times, ``[n]``.
        switch_ms: c between tensor i − 1 and i, ``[n]``; the first is not used.
        transfer_ms: w, copying each tensor's weights.
    """
    n = len(resident)
    default_ms = np.where(resident, gpu_ms, cpu_ms)
    switched = np.concatenate([[0.0], np.where(resident[1:] != resident[:-1], switch_ms[1:], 0.0)])[:n]
    elapsed = np.concatenate([[0.0], np.cumsum(default_ms + switched)])  # of the default placement, up to tensor i
    best = np.full((n + 1, 2), np.inf)  # best[i, d]: the first i tensors, the last of them on device d (1 is the GPU)
    best[0] = 0.0
    # What came before: (tensors done, device, whether the last one was copied).
    parent: dict[tuple[int, int], tuple[int, int, bool]] = {}
    for i in range(n):
        for device in (1,) if resident[i] else (0,):
            for before in (0, 1):
                cost = best[i, before] + (switch_ms[i] if i and before != device else 0.0)
                cost += gpu_ms[i] if device else cpu_ms[i]
                if cost < best[i + 1, device]:
                    best[i + 1, device], parent[i + 1, device] = cost, (i, before, False)
        if resident[i]:
            continue
        to_gpu = switch_ms[i] if i and not resident[i - 1] else 0.0
        for start in range(i + 1):
            if start and resident[start - 1]:
                continue
            window = elapsed[i] - elapsed[start]
            cost = best[start, 0] + max(transfer_ms[i], window) + to_gpu + gpu_ms[i]
            if cost < best[i + 1, 1]:
                best[i + 1, 1], parent[i + 1, 1] = cost, (start, 0, True)
    runs = np.array(resident, bool)
    done, device = n, int(best[n, 1] < best[n, 0])
    while done:
        start, before, copied = parent[done, device]
        runs[done - 1] = bool(device)
        if copied:
            runs[start : done - 1] = resident[start : done - 1]
        done, device = start, before
    return runs
