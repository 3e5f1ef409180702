"""Measures what a cold expert costs on the CPU's pool and on the link, both at work at once."""

from time import perf_counter

import numpy as np
import torch

from engines.ostinato.experts import Experts
from engines.ostinato.packing import TORCH
from engines.ostinato.shares import Rates

_TOKENS = (1, 4, 16, 64, 256)
_EXPERTS = 24
_ROUNDS = 3


def measure(experts: Experts) -> Rates:
    """Medians of a few rounds; takes well under a second. Without a GPU an upload is a copy in memory."""
    store, cpu, staging = experts.pool.store, experts.cpu, experts.staging
    layout = store.layout
    n = min(_EXPERTS, store.experts)
    draw = np.random.default_rng(0)
    kind = TORCH.get(layout.dtype, torch.bfloat16)
    blocks = np.concatenate([store.addresses[layer % store.layers, :n] for layer in range(_ROUNDS + 1)])
    uploads: list[float] = []
    times: list[float] = []
    for tokens in _TOKENS:
        x = torch.from_numpy(draw.standard_normal((tokens, layout.hidden), np.float32)).to(kind)
        out = torch.empty(tokens, layout.hidden)
        starts = np.arange(0, tokens * (n + 1), tokens, dtype=np.int32)
        rows = np.tile(np.arange(tokens, dtype=np.int32), n)
        weights = np.full(tokens * n, 1 / n, np.float32)
        rounds = []
        for r in range(_ROUNDS + 1):
            upload = _Upload(experts) if staging is not None else None
            began = perf_counter()
            cpu.compute(blocks[r * n : (r + 1) * n], starts, rows, weights, x, out)
            rounds.append((perf_counter() - began) * 1e3 / n)
            if upload is not None:
                uploads.append(upload.ms_each())
        times.append(float(np.median(rounds[1:])))
    upload_ms = float(np.median(uploads)) if uploads else float("inf")
    return Rates(
        upload_ms=upload_ms, cpu_tokens=tuple(map(float, _TOKENS)), cpu_ms=tuple(np.maximum.accumulate(times))
    )


class _Upload:
    """Copies as many experts as half the staging buffer holds, beside whatever the CPU does."""

    def __init__(self, experts: Experts) -> None:
        staging, store = experts.staging, experts.pool.store
        assert staging is not None
        self._count = min(staging.half, store.experts)
        self._gpu = experts.pool.device.type == "cuda"
        chosen = list(range(self._count))
        if not self._gpu:
            began = perf_counter()
            store.gather(0, chosen, staging.blocks)
            self._ms = (perf_counter() - began) * 1e3
            return
        self._stream = torch.cuda.Stream(experts.pool.device)
        self._from, self._to = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(self._stream):
            self._from.record()
            store.gather(0, chosen, staging.blocks)
            self._to.record()

    def ms_each(self) -> float:
        if self._gpu:
            self._to.synchronize()
            return float(self._from.elapsed_time(self._to)) / self._count
        return self._ms / self._count
