"""The same experts through PyTorch, where there is no compiler."""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear

from engines.ostinato.cpu.library import Mailbox
from engines.ostinato.cpu.native import X_DTYPES, check
from engines.ostinato.cpu.torch_service import TorchService
from engines.ostinato.expert_layout import MXFP4_GROUP, Activation, ExpertLayout

# Shapes: T = tokens, D = model width, I = an expert's inner width, G = groups of a row.

_FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class TorchCpuExperts:
    """:class:`~engines.ostinato.cpu.library.CpuExperts` over ``torch.nn.functional.linear``."""

    isa = "torch"

    def __init__(self, layout: ExpertLayout, *, threads: int, cores: Sequence[int] | None = None):
        """PyTorch's threads are its own: ``cores`` is not used, and their number holds for the whole process."""
        self.layout, self.threads, self.cores = layout, threads, cores
        torch.set_num_threads(threads)

    def compute(
        self,
        experts: NDArray[np.int64],
        starts: NDArray[np.int32],
        tokens: NDArray[np.int32],
        weights: NDArray[np.float32],
        x_TD: Tensor,
        out_TD: Tensor,
    ) -> None:
        """See :meth:`engines.ostinato.cpu.library.CpuExperts.compute`."""
        check(self.layout, experts, starts, tokens, weights, x_TD, out_TD)
        out_TD.zero_()
        for i, address in enumerate(experts):
            routes = slice(int(starts[i]), int(starts[i + 1]))
            rows = torch.from_numpy(tokens[routes]).long()
            if len(rows):
                y_TD = expert(self.layout, int(address), x_TD[rows]).float()
                out_TD.index_add_(0, rows, y_TD * torch.from_numpy(weights[routes])[:, None])

    def service(self, tables: NDArray[np.int64], mailboxes: Sequence[Mailbox]) -> TorchService:
        """See :meth:`engines.ostinato.cpu.library.CpuExperts.service`."""
        return TorchService(self, tables, mailboxes)

    def close(self) -> None:
        """Nothing to end."""


@torch.inference_mode()
def expert(layout: ExpertLayout, address: int, x_TD: Tensor) -> Tensor:
    """``[T, D]`` of one expert, in x's dtype."""
    gate_TI, up_TI = (_product(layout, address, name, x_TD) for name in ("gate", "up"))
    return _product(layout, address, "down", activate(layout.activation, gate_TI, up_TI))


def activate(activation: Activation, gate: Tensor, up: Tensor) -> Tensor:
    """What stands between the products, in the operands' dtype."""
    match activation.kind:
        case "silu":
            return torch.nn.functional.silu(gate) * up
        case "gelu_tanh":
            return torch.nn.functional.gelu(gate, approximate="tanh") * up
        case "silu_clamp":
            limit = activation.limit
            return torch.nn.functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
        case "swiglu_oai":
            gate, up = gate.clamp(max=activation.limit), up.clamp(-activation.limit, activation.limit)
            return gate * torch.sigmoid(activation.alpha * gate) * (up + 1)
    raise ValueError(f"activation {activation.kind!r}: one of silu, gelu_tanh, silu_clamp, swiglu_oai")


def _product(layout: ExpertLayout, address: int, name: str, x: Tensor) -> Tensor:
    rows, columns = (layout.hidden, layout.width) if name == "down" else (layout.width, layout.hidden)
    values = _part(layout, address, name)
    if layout.dtype == "mxfp4":
        weights = dequantised(values.reshape(rows, -1), _part(layout, address, f"{name}_scales").reshape(rows, -1))
    else:
        weights = values.view(X_DTYPES[layout.dtype]).reshape(rows, columns)
    bias = _part(layout, address, f"{name}_bias").view(torch.float32).to(x.dtype) if layout.bias else None
    return linear(x, weights.to(x.dtype), bias)


def _part(layout: ExpertLayout, address: int, name: str) -> Tensor:
    offset, nbytes = layout.parts[name]
    return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address + offset), dtype=torch.uint8)


def dequantised(packed: Tensor, scales: Tensor) -> Tensor:
    """float32 of mxfp4: ``packed`` ``[rows, columns / 2]``, ``scales`` ``[rows, columns / 32]``, both uint8."""
    table = torch.tensor([*_FP4, *(-value for value in _FP4)])
    values = torch.stack((table[(packed & 15).long()], table[(packed >> 4).long()]), dim=-1)
    grouped = values.reshape(len(packed), -1, MXFP4_GROUP) * torch.exp2(scales.float() - 127)[..., None]
    return grouped.reshape(len(packed), -1)
