"""A decoder layer's single-token pass in five kernels and the experts', instead of one kernel an operator.

Computes attention over rotated heads, normed or not, then a router's choice of experts, each after an RMS norm and
onto its input. Whether a layer does just that is for lean_decode.py to find out.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from engines.ostinato.experts import Experts
from engines.ostinato.kv import LayerKv
from engines.ostinato.tiles import Tile, tile

# Shapes: D = hidden size, H = query heads, G = key/value heads, W = head width, E = experts, K = experts a token,
# C = rotary values given (cosines), P = parts of the cache.

_ALL = 1 << 30
MOST_EXPERTS = 1024
MOST_CHOSEN = 32


@dataclass
class Lean:
    """What all lean layers share."""

    pdl: bool = False
    """Whether a kernel may start before the one ahead of it has ended (programmatic dependent launch)."""
    parts: int = 32
    """Parts of the cache that a token attends to in parallel; a power of two."""
    span: int = 64
    """Tokens of a part at a time."""
    tiles: dict[str, Tile] = field(default_factory=dict)
    """Of ``qkv``, ``out``, ``router``, where not the usual ones."""


@dataclass(frozen=True)
class Gate:
    """How a layer chooses: the largest K logits."""

    E: int
    K: int
    among: bool
    """Whether weights are the softmax over the chosen ones, instead of over all."""
    weights: torch.dtype
    """What weights are rounded to."""

    def choose(self, logits_E: Tensor) -> tuple[Tensor, Tensor]:
        """``(ids [1, K], weights [1, K])``."""
        if logits_E.is_cuda:
            from engines.ostinato.handover import KINDS, kernel

            ids_1K = torch.empty(1, self.K, dtype=torch.int64, device=logits_E.device)
            weights_1K = torch.empty(1, self.K, dtype=self.weights, device=logits_E.device)
            kernel("choose")(
                (1, 1, 1), (self.threads, 1, 1),
                [logits_E, KINDS[logits_E.dtype], self.E, self.K, int(self.among), KINDS[self.weights],
                 ids_1K, weights_1K],
            )  # fmt: skip
            return ids_1K, weights_1K
        best_K, ids_K = logits_E.float().topk(self.K)
        shares_K = best_K.softmax(0) if self.among else logits_E.float().softmax(0)[ids_K]
        return ids_K[None], shares_K.to(self.weights)[None]

    @property
    def threads(self) -> int:
        """Of a block that chooses."""
        return max(256, -(-self.E // 32) * 32)


class LeanLayer:
    """One layer.

    Args:
        doubled: whether the cosines given are those of half of the rotated values.
    """

    def __init__(self, layer: Any, lean: Lean, kv: LayerKv, gate: Gate, *, doubled: bool) -> None:
        attention, self._router = layer.self_attn, router_of(layer)
        self.layer = layer
        self.plain: Callable[..., Any] = layer.forward
        """The model's own, for passes of several tokens."""
        self._lean, self._kv, self._gate, self._doubled = lean, kv, gate, doubled
        self._experts: Experts = layer.mlp.experts.ostinato_experts
        self._number: int = layer.mlp.experts.ostinato_layer
        self._norm, self._after = layer.input_layernorm, layer.post_attention_layernorm
        self._q_norm: Any = getattr(attention, "q_norm", None)
        self._k_norm: Any = getattr(attention, "k_norm", None)
        self._W: int = attention.head_dim
        self._H, self._G = (proj.out_features // self._W for proj in (attention.q_proj, attention.k_proj))
        self._qkv, self._qkv_bias = packed((attention.q_proj, attention.k_proj, attention.v_proj))
        self._out = attention.o_proj

    def can_turn(self, cos: Tensor, sin: Tensor) -> bool:
        """Whether these rotary values are some that its heads take."""
        given = cos.shape[-1]
        turned = 2 * given if self._doubled else given
        return cos.shape == sin.shape == (1, 1, given) and turned <= self._W and turned % 2 == 0

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Stands for the layer's own."""
        if hidden_states.shape[:2] != (1, 1):
            return self.plain(hidden_states, *args, **kwargs)
        return self.single(hidden_states, *kwargs["position_embeddings"])

    def single(self, x_11D: Tensor, cos_11C: Tensor, sin_11C: Tensor) -> Tensor:
        """The layer's output ``[1, 1, D]`` for one token."""
        x_1D = x_11D.reshape(1, -1)
        between_1D = self.attention(x_1D, cos_11C, sin_11C)
        normed_1D, logits_E = self.route(between_1D)
        if self._experts.captured_onto is not None:
            out: Tensor = self._experts.captured_onto(self._number, self._gate, normed_1D, logits_E, between_1D)
            return out[None]
        out_1D = self._experts.forward(self._number, normed_1D, *self._gate.choose(logits_E))
        return (between_1D + out_1D)[None]

    def attention(self, x_1D: Tensor, cos_11C: Tensor, sin_11C: Tensor) -> Tensor:
        """Attention on top of ``x``, ``[1, D]``."""
        qkv = self._product("qkv", x_1D, self._qkv, self._qkv_bias, norm=self._norm)
        attended = self._attend(qkv, cos_11C.contiguous(), sin_11C.contiguous())
        return self._product("out", attended, self._out.weight, self._out.bias, residual=x_1D)

    def route(self, x_1D: Tensor) -> tuple[Tensor, Tensor]:
        """The normed x ``[1, D]`` and the router's logits ``[E]``."""
        normed_1D = torch.empty_like(x_1D)
        bias = getattr(self._router, "bias", None)
        logits_1E = self._product("router", x_1D, self._router.weight, bias, norm=self._after, normed=normed_1D)
        return normed_1D, logits_1E[0]

    def _product(
        self, name: str, x_1D: Tensor, weights: Tensor, bias: Tensor | None, *, norm: Any = None,
        residual: Tensor | None = None, normed: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        from engines.ostinato.lean_kernels import product

        rows, D = weights.shape
        out = torch.empty(1, rows, dtype=x_1D.dtype, device=x_1D.device)
        size = self._lean.tiles.get(name) or tile(D, rows=1 if name == "router" or D > 2048 else 2)
        product[(-(-rows // size.rows),)](
            x_1D, None if norm is None else norm.weight, weights, bias, residual, out, normed,
            0.0 if norm is None else float(norm.variance_epsilon), D, rows, 1 << (D - 1).bit_length(), size.rows,
            size.columns, norm is not None, bias is not None, residual is not None, normed is not None,
            self._lean.pdl, num_warps=size.warps, **self._early,
        )  # fmt: skip
        return out

    def _attend(self, qkv: Tensor, cos_11C: Tensor, sin_11C: Tensor) -> Tensor:
        from engines.ostinato.attention_kernels import attend_join
        from engines.ostinato.lean_kernels import attend_new

        asked = self._kv.asked
        assert asked is not None
        keys, values = self._kv.buffers
        H, G, W, P, pdl = self._H, self._G, self._W, self._lean.parts, self._lean.pdl
        wide = max(16, 1 << (W - 1).bit_length())
        partial = torch.empty(H, P, W, dtype=torch.float32, device=qkv.device)
        tops = torch.empty(H, P, dtype=torch.float32, device=qkv.device)
        sums = torch.empty_like(tops)
        out = torch.empty(1, H * W, dtype=qkv.dtype, device=qkv.device)
        norms = (None, None) if self._q_norm is None else (self._q_norm.weight, self._k_norm.weight)
        given = cos_11C.shape[-1]
        attend_new[(G, P)](
            qkv, *norms, cos_11C, sin_11C, keys, values, self._kv.length_1, partial, tops, sums, asked.scale,
            0.0 if self._q_norm is None else float(self._q_norm.variance_epsilon), asked.window or _ALL,
            keys.shape[1], H, G, max(16, 1 << (H // G - 1).bit_length()), W, wide,
            2 * given if self._doubled else given, given, self._q_norm is not None, P, self._lean.span, pdl,
            **self._early,
        )  # fmt: skip
        attend_join[(H,)](
            partial, tops, sums, asked.sinks_H, out, W, wide, P, asked.sinks_H is not None, pdl, **self._early
        )
        return out

    @property
    def _early(self) -> dict[str, bool]:
        return {"launch_pdl": True} if self._lean.pdl else {}


def router_of(layer: Any) -> Any:
    """The module that chooses the experts; families call it differently."""
    return getattr(layer.mlp, "gate", None) or getattr(layer.mlp, "router", None)


def packed(parts: tuple[nn.Linear, ...]) -> tuple[Tensor, Tensor | None]:
    """One matrix (and bias) of which the modules' own become views."""
    with torch.inference_mode(False), torch.no_grad():  # compiled code takes no inference tensors for parameters
        weights = torch.cat([part.weight for part in parts])
        biases = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
        first = 0
        for part in parts:
            rows = slice(first, first + part.out_features)
            part.weight = nn.Parameter(weights[rows], requires_grad=False)
            if biases is not None:
                part.bias = nn.Parameter(biases[rows], requires_grad=False)
            first = rows.stop
    return weights, biases
