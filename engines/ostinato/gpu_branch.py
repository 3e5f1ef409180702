"""The device branch on a GPU: grouped products over blocks of one expert's routes (kernels.py)."""

import numpy as np
import torch
import triton
from torch import Tensor

from engines.ostinato import kernels
from engines.ostinato.device_branch import Pass
from engines.ostinato.expert_layout import ExpertLayout
from engines.ostinato.routes_of_pass import Routes
from engines.ostinato.tiles import Tile, tile

# Shapes: T = tokens, K = experts a token, R = routes of a run, B = blocks, D = hidden size, I = inner width.


def _down_tile(width: int) -> Tile:
    """Two rows: those of all of the token's experts are on their way at once (768 columns on an H200: 7.9 µs
    with 256 at a time, 9.7 with all)."""
    columns = min(256, triton.next_power_of_2(width))
    return Tile(2, columns, 4)


class TritonBranch:
    """Passes of any number of tokens, and single tokens with addresses that are only known on the device."""

    def __init__(self, layout: ExpertLayout) -> None:
        self.layout = layout
        offset = {name: place for name, (place, _) in layout.parts.items()}
        self._up, self._down = offset["up"], offset["down"]
        self._biases = {name: offset.get(f"{name}_bias", 0) for name in ("gate", "up", "down")}
        self._scales = {name: offset.get(f"{name}_scales", 0) for name in ("gate", "up", "down")}
        self._activation = kernels.ACTIVATIONS[layout.activation.kind]
        self.pdl = False
        """Whether a single token's kernels may start before the ones ahead of them have ended."""
        packed = layout.dtype == "mxfp4"
        self.up_tile = Tile(8, 512, 4) if packed else tile(layout.hidden)
        self.down_tile = Tile(8, 256, 4) if packed else _down_tile(layout.width)

    def begin(self, x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, routes: Routes) -> Pass:
        return _TritonPass(self, x_TD.contiguous(), ids_TK.contiguous(), weights_TK.contiguous(), routes)

    def one(self, x_1D: Tensor, addresses_K: Tensor, weights_K: Tensor, h_KI: Tensor, out_D: Tensor) -> None:
        """Σ over the nonzero addresses of weight · expert(x) in float32, without a look from the host."""
        layout, biases, scales = self.layout, self._biases, self._scales
        K, D, I = len(addresses_K), layout.hidden, layout.width
        limit = min(layout.activation.limit, 3e38)
        up, down, early = self.up_tile, self.down_tile, {"launch_pdl": True} if self.pdl else {}
        kernels.decode_up[(K, triton.cdiv(I, up.rows))](
            x_1D, addresses_K, h_KI, layout.activation.alpha, limit,
            D, I, self._up, biases["gate"], biases["up"], self._activation, up.rows, up.columns,
            scales["gate"], scales["up"], self.pdl, num_warps=up.warps, **early,
        )  # fmt: skip
        kernels.decode_down[(triton.cdiv(D, down.rows),)](
            h_KI, addresses_K, weights_K, out_D, K, D, I, self._down, biases["down"],
            triton.next_power_of_2(K), down.rows, down.columns,
            scales["down"], self.pdl, num_warps=down.warps, **early,
        )  # fmt: skip

    def run(
        self, x_TD: Tensor, weights_R: Tensor, rows_RD: Tensor, routes_R: Tensor, blocks: Tensor, starts_B: Tensor,
        counts_B: Tensor, K: int, block_routes: int,
    ) -> None:  # fmt: skip
        """One run's two products."""
        layout, biases, scales = self.layout, self._biases, self._scales
        B, D, I = len(blocks), layout.hidden, layout.width
        h_RI = torch.empty(len(routes_R), I, dtype=x_TD.dtype, device=x_TD.device)
        limit = min(layout.activation.limit, 3e38)
        bn, bk, warps = (64, 64, 4) if block_routes <= 64 else (64, 64, 8)
        kernels.grouped_up[(B, triton.cdiv(I, bn))](
            x_TD, routes_R, blocks, starts_B, counts_B, h_RI, layout.activation.alpha, limit,
            K, D, I, self._up, biases["gate"], biases["up"], self._activation, block_routes, bn, bk,
            scales["gate"], scales["up"], num_warps=warps, num_stages=3,
        )  # fmt: skip
        kernels.grouped_down[(B, triton.cdiv(D, 2 * bn))](
            h_RI, routes_R, weights_R, blocks, starts_B, counts_B, rows_RD,
            D, I, self._down, biases["down"], block_routes, 2 * bn, bk, scales["down"],
            num_warps=warps, num_stages=3,
        )  # fmt: skip


class _TritonPass:
    def __init__(
        self, branch: TritonBranch, x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, routes: Routes
    ) -> None:
        self._branch, self._routes = branch, routes
        self._x_TD, self._ids_TK, self._weights_TK = x_TD, ids_TK, weights_TK
        self._rows_RD = torch.empty(weights_TK.numel(), x_TD.shape[1], dtype=x_TD.dtype, device=x_TD.device)
        self._here_E = np.zeros(len(routes.counts_E), np.uint8)

    def run(self, experts: np.ndarray, addresses: np.ndarray) -> None:
        if not len(experts):
            return
        self._here_E[experts] = 1
        routes_R, starts = self._routes.gather(experts)
        if not len(routes_R):
            return  # copied although no token chose them
        counts = np.diff(starts)
        size = int(np.clip(1 << int(counts.mean() - 1).bit_length(), 16, 128))
        per_expert = -(-counts // size)
        owner = np.repeat(np.arange(len(experts)), per_expert)
        nth = np.arange(len(owner)) - np.repeat(np.cumsum(per_expert) - per_expert, per_expert)
        starts_B = starts[owner] + nth * size
        counts_B = np.minimum(counts[owner] - nth * size, size)
        # One copy takes all of it: addresses first, they are the wider ones.
        packed = np.concatenate(
            [addresses[owner].view(np.int32), starts_B.astype(np.int32), counts_B.astype(np.int32), routes_R]
        )
        device = torch.from_numpy(packed).pin_memory().to(self._x_TD.device, non_blocking=True)
        B = len(owner)
        self._branch.run(
            self._x_TD, self._weights_TK, self._rows_RD, device[4 * B :], device[: 2 * B].view(torch.int64),
            device[2 * B : 3 * B], device[3 * B : 4 * B], self._routes.per_token, size,
        )  # fmt: skip

    def join(self, cpu_TD: Tensor | None) -> Tensor:
        T, D = self._x_TD.shape
        out_TD = torch.empty_like(self._x_TD)
        here = torch.from_numpy(self._here_E).pin_memory().to(out_TD.device, non_blocking=True)
        block = min(1024, triton.next_power_of_2(D))
        kernels.combine[(T, triton.cdiv(D, block))](
            self._rows_RD, self._ids_TK, here, out_TD if cpu_TD is None else cpu_TD, out_TD,
            self._routes.per_token, D, cpu_TD is not None, block,
        )  # fmt: skip
        return out_TD
