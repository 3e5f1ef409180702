"""Whatever a family's experts look like in its files → blocks of ``ExpertLayout``."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engines.ostinato.checkpoint import Checkpoint
from engines.ostinato.errors import SetupError
from engines.ostinato.expert_layout import Activation, ExpertLayout
from engines.ostinato.store import ExpertStore

# Shapes: E = experts, D = hidden size, I = inner width.

_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
TORCH = {name: dtype for dtype, name in _NAMES.items()}


def layout_of(module: Any, dtype: torch.dtype, *, quantized: bool) -> ExpertLayout:
    """The layout of an experts module (its parameters on ``meta``).

    Raises:
        SetupError: experts of a form that no kernel here computes.
    """
    if not module.has_gate or getattr(module, "has_post_expert_norm", False):
        raise SetupError(
            f"{type(module).__name__}: experts without a gate or with a norm of their own can't be placed"
        )
    rows, columns = module.down_proj.shape[1:]
    hidden, width = (columns, rows) if module.is_transposed else (rows, columns)
    kind = "mxfp4" if quantized else _NAMES[dtype]
    return ExpertLayout(hidden, width, kind, bias=module.has_bias, activation=activation_of(module, width))


def activation_of(module: Any, width: int) -> Activation:
    """Which of the known activations the module's gate is, found by trying it."""
    draw = torch.Generator().manual_seed(0)
    gate, up = (4 * torch.randn(16, width, generator=draw) for _ in range(2))
    together = torch.cat([gate, up], -1) if module.is_concatenated else torch.stack([gate, up], -1).flatten(-2)
    wanted = module._apply_gate(together)  # noqa: SLF001 - declared by transformers' experts interface
    limits = [getattr(module, name, None) for name in ("limit", "swiglu_limit")]
    limit = next((float(value) for value in limits if value is not None), float("inf"))
    alpha = float(getattr(module, "alpha", 1.0))
    for candidate in (
        Activation("silu"),
        Activation("gelu_tanh"),
        Activation("silu_clamp", limit=limit),
        Activation("swiglu_oai", alpha, limit),
    ):
        if torch.allclose(activate(candidate, gate, up), wanted, rtol=1e-4, atol=1e-5):
            return candidate
    raise SetupError(
        f"{type(module).__name__}: its activation is none that the kernels compute; use --placement none"
    )


def activate(activation: Activation, gate: Tensor, up: Tensor) -> Tensor:
    """The activation in plain PyTorch; the kernels compute the same."""
    limit = activation.limit
    if activation.kind == "silu":
        return nn.functional.silu(gate) * up
    if activation.kind == "gelu_tanh":
        return nn.functional.gelu(gate, approximate="tanh") * up
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    if activation.kind == "silu_clamp":
        return nn.functional.silu(gate) * up
    return gate * torch.sigmoid(activation.alpha * gate) * (up + 1)


class Pack:
    """Writes one layer's experts into the store and knows what is still missing."""

    def __init__(self, store: ExpertStore, layer: int, module: Any) -> None:
        self._store, self._layer, self._module = store, layer, module
        self._missing = set(store.layout.parts)
        self._dtype = TORCH.get(store.layout.dtype)

    def matrix(self, expert: int, matrix: str, checkpoint: Checkpoint, name: str) -> None:
        """Read one stored matrix straight to its place."""
        target = self._store.part(self._layer, expert, matrix)
        entry = checkpoint[name]
        if entry.dtype == self._dtype:
            if entry.nbytes != target.nbytes:
                raise SetupError(
                    f"{entry.path}: {name} has shape {entry.shape}, which does not fit the configuration"
                )
            checkpoint.read_into(name, target)
        else:
            assert self._dtype is not None
            values = checkpoint.tensor(name).to(self._dtype)
            _copy(target, values)
        self._missing.discard(matrix)

    def stacked(self, part: str, tensor: Tensor) -> None:
        """Write all experts' share of a stacked parameter ``[E, …]``."""
        if part.endswith(("_blocks", "_scales")):
            self._mxfp4(part, tensor)
            return
        module = self._module
        name, _, suffix = part.partition("_proj")
        bias = suffix == "_bias"
        if not bias and module.is_transposed:
            tensor = tensor.mT
        if name == "gate_up":
            gate, up = tensor.chunk(2, 1) if module.is_concatenated else (tensor[:, 0::2], tensor[:, 1::2])
            self._write("gate", gate, bias=bias)
            self._write("up", up, bias=bias)
        else:
            self._write(name, tensor, bias=bias)

    def check(self) -> None:
        """Refuse a layer that lacks weights."""
        if self._missing:
            raise SetupError(
                f"MoE layer {self._layer} lacks {', '.join(sorted(self._missing))}; download the model again"
            )

    def _write(self, name: str, stack: Tensor, *, bias: bool) -> None:
        part = f"{name}_bias" if bias else name
        kind = torch.float32 if bias else self._dtype
        for expert in range(len(stack)):
            values = stack[expert].contiguous()
            _copy(self._store.part(self._layer, expert, part), values if kind is None else values.to(kind))
        self._missing.discard(part)

    def _mxfp4(self, part: str, tensor: Tensor) -> None:
        """gpt-oss: blocks ``[E, rows, groups, 16]`` and scales ``[E, rows, groups]``, gate and up rows in turn."""
        suffix = "_scales" if part.endswith("_scales") else ""
        name = part.partition("_proj")[0]
        flat = tensor.flatten(2)
        stacks = {"gate": flat[:, 0::2], "up": flat[:, 1::2]} if name == "gate_up" else {name: flat}
        for matrix, stack in stacks.items():
            self._write(matrix + suffix, stack, bias=False)


def _copy(target: np.ndarray, values: Tensor) -> None:
    target[:] = values.contiguous().view(-1).view(torch.uint8).numpy()
