"""Runs the Triton kernels in Triton's interpreter, on the CPU: prints name → largest difference as JSON.

A program of its own: ``TRITON_INTERPRET`` must be set before the kernels are imported and holds for the process.
"""

import json
import os

os.environ["TRITON_INTERPRET"] = "1"

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from engines.ostinato import kernels, kv
from engines.ostinato.device_branch import compute
from engines.ostinato.expert_layout import Activation, ExpertLayout
from engines.ostinato.gpu_branch import TritonBranch
from engines.ostinato.packing import TORCH
from engines.ostinato.routes_of_pass import Routes

HIDDEN, WIDTH, EXPERTS, TOKENS, CHOSEN = 32, 96, 6, 10, 2
OAI = Activation("swiglu_oai", 1.702, 1.0)
LAYOUTS = (
    ExpertLayout(HIDDEN, WIDTH, "float32"),
    ExpertLayout(HIDDEN, WIDTH, "float32", True, OAI),
    ExpertLayout(HIDDEN, WIDTH, "float32", False, Activation("gelu_tanh")),
    ExpertLayout(HIDDEN, WIDTH, "float16", True, Activation("silu_clamp", limit=0.5)),
    ExpertLayout(HIDDEN, WIDTH, "mxfp4"),
    ExpertLayout(HIDDEN, WIDTH, "mxfp4", True, OAI),
)
CACHES = ((1, None, True), (70, 32, True), (200, None, False), (200, 32, False))
"""Tokens held, window, sinks."""


def blocks_of(layout: ExpertLayout) -> Tensor:
    """Random experts."""
    draw = torch.Generator().manual_seed(1)
    blocks = torch.zeros(EXPERTS, layout.nbytes, dtype=torch.uint8)
    for name, (offset, size) in layout.parts.items():
        if name.endswith("_bias"):
            part = torch.randn(EXPERTS, size // 4, generator=draw).view(torch.uint8)
        elif name.endswith("_scales"):
            part = torch.randint(119, 125, (EXPERTS, size), generator=draw, dtype=torch.uint8)
        elif layout.dtype == "mxfp4":
            part = torch.randint(0, 256, (EXPERTS, size), generator=draw, dtype=torch.uint8)
        else:
            kind = TORCH[layout.dtype]
            part = (torch.randn(EXPERTS, size // kind.itemsize, generator=draw) / 8).to(kind).view(torch.uint8)
        blocks[:, offset : offset + size] = part
    return blocks


def experts(layout: ExpertLayout) -> tuple[float, float]:
    """A pass of several tokens with some experts left to the CPU, and a single token."""
    draw = torch.Generator().manual_seed(2)
    blocks = blocks_of(layout)
    kind = TORCH.get(layout.dtype, torch.float32)
    addresses = blocks.data_ptr() + layout.nbytes * np.arange(EXPERTS)
    x_TD = torch.randn(TOKENS, HIDDEN, generator=draw).to(kind)
    ids_TK = torch.stack([torch.randperm(EXPERTS, generator=draw)[:CHOSEN] for _ in range(TOKENS)])
    weights_TK = torch.rand(TOKENS, CHOSEN, generator=draw)
    cpu_TD = torch.randn(TOKENS, HIDDEN, generator=draw)
    outs_ETD = torch.stack([compute(layout, blocks[e], x_TD).float() for e in range(EXPERTS)])

    branch = TritonBranch(layout)
    routes = Routes(ids_TK.numpy(), EXPERTS)
    here = np.array([0, 1, 3, 5])
    mask_E = torch.zeros(EXPERTS, dtype=torch.uint8)
    mask_E[here] = 1
    routes_R, starts = routes.gather(here)
    rows_RD = torch.full((TOKENS * CHOSEN, HIDDEN), float("nan"), dtype=kind)
    parts = [  # blocks of up to 8 routes of one expert
        (address, start, min(start + 8, end))
        for address, begin, end in zip(addresses[here], starts[:-1], starts[1:], strict=True)
        for start in range(begin, end, 8)
    ]
    branch.run(
        x_TD, weights_TK, rows_RD, torch.from_numpy(routes_R), torch.tensor([a for a, _, _ in parts]),
        torch.tensor([s for _, s, _ in parts], dtype=torch.int32),
        torch.tensor([e - s for _, s, e in parts], dtype=torch.int32), CHOSEN, 16,
    )  # fmt: skip
    out_TD = torch.empty_like(x_TD)
    kernels.combine[(TOKENS, 1)](rows_RD, ids_TK, mask_E, cpu_TD, out_TD, CHOSEN, HIDDEN, True, 64)
    wanted = cpu_TD.clone()
    for t in range(TOKENS):
        for k in range(CHOSEN):
            e = int(ids_TK[t, k])
            wanted[t] += weights_TK[t, k] * outs_ETD[e, t] * mask_E[e]

    addresses_K = torch.tensor([0, int(addresses[4])])
    h_KI = torch.empty(CHOSEN, WIDTH, dtype=kind)
    out_D = torch.empty(HIDDEN)
    branch.one(x_TD[:1], addresses_K, weights_TK[0], h_KI, out_D)
    one = weights_TK[0, 1] * outs_ETD[4, 0]
    return scaled(out_TD, wanted), scaled(out_D, one)


def attention(held: int, window: int | None, *, sinks: bool) -> float:
    """A single token over a cache."""
    draw = torch.Generator().manual_seed(3)
    heads, groups, keys, values = 6, 2, 24, 40
    sequence = kv.Sequence(torch.device("cpu"), 256)
    layer = kv.LayerKv(sequence)
    key, value = torch.randn(groups, held, keys, generator=draw), torch.randn(groups, held, values, generator=draw)
    query = torch.randn(heads, 1, keys, generator=draw)
    sinks_H = torch.randn(heads, generator=draw) if sinks else None
    layer.attend(query.expand(heads, held, keys), key, value, scale=0.25, window=None, sinks_H=None, softcap=None)
    sequence.length_1.fill_(held)
    got = layer._one(query, 0.25, window, sinks_H)
    return scaled(got, kv._by_hand(query, key, value, 0.25, window, sinks_H, None))


def scaled(got: Tensor, wanted: Tensor) -> float:
    return float((got.float() - wanted.float()).abs().max() / wanted.abs().max())


def checks() -> Iterator[tuple[str, float]]:
    for layout in LAYOUTS:
        several, one = experts(layout)
        name = f"{layout.dtype} {layout.activation.kind}{' bias' if layout.bias else ''}"
        yield f"{name}, several tokens", several
        yield f"{name}, one token", one
    for held, window, sinks in CACHES:
        yield f"attention over {held}, window {window}, sinks {sinks}", attention(held, window, sinks=sinks)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(dict(checks())))
