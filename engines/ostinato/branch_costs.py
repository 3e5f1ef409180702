"""What the two branches of a decode step's MoE layer cost alone: r experts on the CPU, K on the device."""

from collections.abc import Iterator
from statistics import median
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from engines.ostinato.cpu.library import MAILBOX_HEADER, CpuExperts, Mailbox
from engines.ostinato.device_branch import compute
from engines.ostinato.errors import SetupError
from engines.ostinato.experts import Experts
from engines.ostinato.packing import TORCH
from engines.ostinato.store import ExpertStore

# Shapes: K = experts a token, D = hidden size, I = inner width.

_JOBS = 40
_ANSWER_S = 10.0


def compute_ms(cpu: CpuExperts, store: ExpertStore, most: int) -> tuple[float, ...]:
    """C(r) for r = 0 … ``most``, called as passes outside a captured step call it. A layer without cold routes calls
    nobody."""
    x_1D, out_1D = _token(store), torch.empty(1, store.layout.hidden)
    times = [0.0]
    for r in range(1, most + 1):
        rounds = []
        for layer, chosen in _jobs(store, r):
            blocks = store.addresses[layer, chosen]
            starts, tokens = np.arange(r + 1, dtype=np.int32), np.zeros(r, np.int32)
            began = perf_counter()
            cpu.compute(blocks, starts, tokens, np.full(r, 1 / r, np.float32), x_1D, out_1D)
            rounds.append(perf_counter() - began)
        times.append(median(rounds) * 1e3)
    return tuple(times)


def service_ms(cpu: CpuExperts, store: ExpertStore, most: int) -> tuple[float, ...]:
    """C(r) as a captured step sees it: from the request in the mailbox to the answer. No other service may run."""
    x_1D = _token(store)
    request = np.zeros(MAILBOX_HEADER + x_1D.nbytes + 64, np.uint8)
    response = np.zeros(MAILBOX_HEADER + 4 * store.layout.hidden + 64, np.uint8)
    request, response = (box[-box.ctypes.data % 64 :] for box in (request, response))
    service = cpu.service(store.addresses, [Mailbox(request.ctypes.data, response.ctypes.data)])
    words, answer = request[:MAILBOX_HEADER].view(np.int32), response[:4].view(np.int32)
    request[MAILBOX_HEADER : MAILBOX_HEADER + x_1D.nbytes] = x_1D.view(torch.uint8).numpy().reshape(-1)
    times, sequence = [0.0], 0
    service.start()
    try:
        for r in range(1, most + 1):
            rounds = []
            words[20 : 20 + r].view(np.float32)[:] = 1 / r
            for layer, chosen in _jobs(store, r):
                sequence += 1
                words[1], words[2], words[4 : 4 + r] = layer, r, chosen
                began = perf_counter()
                words[0] = sequence  # last: the service looks at this
                while answer[0] != sequence:
                    if perf_counter() - began > _ANSWER_S:
                        raise SetupError(f"the CPU pool did not answer within {_ANSWER_S:g} s; lower --threads")
                rounds.append(perf_counter() - began)
            times.append(median(rounds) * 1e3)
    finally:
        service.stop()
    return tuple(times)


def _jobs(store: ExpertStore, r: int) -> Iterator[tuple[int, np.ndarray]]:
    """(layer, r experts), rarely the same: an expert that was just used would come from the processor's cache."""
    draw = np.random.default_rng(r)
    for _ in range(_JOBS):
        yield int(draw.integers(store.layers)), draw.choice(store.experts, r, replace=False)


def _token(store: ExpertStore) -> Tensor:
    kind = TORCH.get(store.layout.dtype, torch.bfloat16)
    return torch.from_numpy(np.random.default_rng(0).standard_normal((1, store.layout.hidden), np.float32)).to(kind)


def device_ms(experts: Experts, K: int) -> float:
    """G: one token's K experts on the device, none of them in its cache."""
    store = experts.pool.store
    if experts.pool.device.type != "cuda":
        x_1D, rounds = _token(store), []
        for layer, chosen in _jobs(store, K):
            began = perf_counter()
            for expert in chosen.tolist():
                compute(store.layout, store.tensor[layer, expert], x_1D)
            rounds.append(perf_counter() - began)
        return median(rounds) * 1e3
    from engines.ostinato.gpu_branch import TritonBranch

    assert isinstance(experts.branch, TritonBranch)
    assert experts.staging is not None
    branch, blocks, device = experts.branch, experts.staging.blocks, experts.pool.device
    rows = min(len(blocks), store.experts)
    store.gather(0, list(range(rows)), blocks)
    x_1D = _token(store).to(device)
    weights_K = torch.full((K,), 1 / K, device=device)
    h_KI = torch.empty(K, store.layout.width, dtype=x_1D.dtype, device=device)
    out_D = torch.empty(store.layout.hidden, device=device)
    base = blocks.data_ptr() + store.layout.nbytes * torch.arange(rows, dtype=torch.int64, device=device)
    groups = [base[torch.arange(first, first + K, device=device) % rows].contiguous() for first in range(0, rows, K)]
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        branch.one(x_1D, groups[0], weights_K, h_KI, out_D)
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for addresses_K in groups:
                branch.one(x_1D, addresses_K, weights_K, h_KI, out_D)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        start.record()
        for _ in range(_JOBS):
            graph.replay()
        stop.record()
        stop.synchronize()
    return float(start.elapsed_time(stop)) / _JOBS / len(groups)
