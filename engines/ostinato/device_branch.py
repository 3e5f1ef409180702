"""The experts that a device computes in a pass of several tokens: Triton kernels on a GPU, PyTorch on a CPU.

A pass is begun, run once or more with lists of experts whose blocks lie at given addresses, and joined with what the
CPU pool computed. Each route has a row of its own, added in the order of a token's routes: the order of the runs does
not matter.
"""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from engines.ostinato.expert_layout import ExpertLayout
from engines.ostinato.packing import TORCH, activate
from engines.ostinato.routes_of_pass import Routes

# Shapes: T = tokens, K = experts a token, D = hidden size, I = inner width, E = experts.


class Pass(Protocol):
    """One layer's experts of one forward pass."""

    def run(self, experts: np.ndarray, addresses: np.ndarray) -> None:
        """Compute these experts' routes; their blocks lie at the addresses until the stream has passed this point."""

    def join(self, cpu_TD: Tensor | None) -> Tensor:
        """The layer's output ``[T, D]``; ``cpu_TD`` (float32, on the device) holds the routes that were not run."""


class DeviceBranch(Protocol):
    """Begins passes."""

    def begin(self, x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, routes: Routes) -> Pass:
        """Args: on the device; ``routes`` on the host."""


class TorchBranch:
    """The device branch in plain PyTorch, for devices without Triton: a block's address is one in this process."""

    def __init__(self, layout: ExpertLayout) -> None:
        self._layout = layout

    def begin(self, x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, routes: Routes) -> Pass:  # noqa: ARG002
        return _TorchPass(self._layout, x_TD, weights_TK, routes)


class _TorchPass:
    def __init__(self, layout: ExpertLayout, x_TD: Tensor, weights_TK: Tensor, routes: Routes) -> None:
        self._layout, self._x_TD, self._routes = layout, x_TD, routes
        self._weights_R = weights_TK.reshape(-1).float()
        self._rows_RD = torch.zeros(weights_TK.numel(), layout.hidden, dtype=torch.float32, device=x_TD.device)

    def run(self, experts: np.ndarray, addresses: np.ndarray) -> None:
        for expert, address in zip(experts.tolist(), addresses.tolist(), strict=True):
            rows = torch.from_numpy(self._routes.of(expert))
            out = compute(
                self._layout, block_at(address, self._layout.nbytes), self._x_TD[rows // self._routes.per_token]
            )
            self._rows_RD[rows] = out.float() * self._weights_R[rows, None]

    def join(self, cpu_TD: Tensor | None) -> Tensor:
        out_TD = self._rows_RD.view(len(self._x_TD), self._routes.per_token, -1).sum(1)
        if cpu_TD is not None:
            out_TD = out_TD + cpu_TD
        return out_TD.to(self._x_TD.dtype)


def compute(layout: ExpertLayout, block: Tensor, x_TD: Tensor) -> Tensor:
    """One expert of a block (uint8) for T tokens, rounding where the kernels round; ``[T, D]``."""
    parts = {name: block[offset : offset + size] for name, (offset, size) in layout.parts.items()}

    def matrix(name: str, rows: int) -> Tensor:
        if layout.dtype == "mxfp4":
            return unpack_mxfp4(parts[name], parts[f"{name}_scales"], rows).to(x_TD.dtype)
        return parts[name].view(TORCH[layout.dtype]).view(rows, -1)

    def bias(name: str) -> Tensor | None:
        return parts[f"{name}_bias"].view(torch.float32).to(x_TD.dtype) if layout.bias else None

    gate = linear(x_TD, matrix("gate", layout.width), bias("gate"))
    up = linear(x_TD, matrix("up", layout.width), bias("up"))
    h = activate(layout.activation, gate.float(), up.float()).to(x_TD.dtype)
    return linear(h, matrix("down", layout.hidden), bias("down"))


_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def unpack_mxfp4(packed: Tensor, scales: Tensor, rows: int) -> Tensor:
    """OCP MXFP4 to float32 ``[rows, columns]``: E2M1 values, two a byte, times 2^(scale − 127) per 32."""
    values = torch.tensor(_FP4, device=packed.device)
    pairs = torch.stack([values[(packed & 15).long()], values[(packed >> 4).long()]], -1)
    groups = pairs.view(rows, -1, 32)
    return (groups * torch.exp2(scales.view(rows, -1, 1).float() - 127)).view(rows, -1)


def block_at(address: int, nbytes: int) -> Tensor:
    """Memory of this process as a tensor; whoever owns it must outlive its use."""
    import ctypes

    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8)
