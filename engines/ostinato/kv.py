"""One sequence's keys and values, and attention over them: what transformers calls instead of its own caches.

Every attention module gets a ``LayerKv``; a pass appends its tokens after the first ``start`` and attends over all.
Cutting the sequence back is setting ``start``. On a GPU the room is taken at once, and a single token's work follows
the tokens held (attention_kernels.py); on a CPU the room grows with the sequence.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

# Shapes: H = query heads, G = key/value heads, T = new tokens, S = tokens held, N = room, W = key width, V = value's.

NAME = "ostinato"
_MIN_ROOM = 1024
_PARTS = 32
"""Parts of the cache that a single token attends to in parallel; a power of two."""
_QUERY_ROWS = 256
"""Rows of scores at a time where attention is computed by hand."""
_ALL = 1 << 30
_FLASH_WIDTH = 256


class Sequence:
    """What all layers share: how many tokens are held before this pass."""

    def __init__(self, device: torch.device, room: int) -> None:
        self.device = device
        self.room = room
        self.start = 0
        self.position_1 = torch.zeros(1, dtype=torch.int64, device=device)
        """Of the token of a single-token pass on a GPU."""
        self.length_1 = torch.ones(1, dtype=torch.int32, device=device)
        """Tokens held with it: one more."""

    def at(self, start: int) -> None:
        """Go on after the first ``start`` tokens."""
        self.start = start
        self.position_1.fill_(start)
        self.length_1.fill_(start + 1)


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """How a module attends."""

    scale: float
    window: int | None
    sinks_H: Tensor | None
    softcap: float | None


class LayerKv:
    """The keys and values of one attention module."""

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._keys_GNW: Tensor | None = None
        self._values_GNV: Tensor | None = None
        self.seen = 0
        """Tokens of the last pass: shows that the module comes here."""
        self.asked: Asked | None = None
        """What the module wanted in the last pass."""

    @property
    def buffers(self) -> tuple[Tensor, Tensor]:
        """Keys and values, room included; there is some once a pass has come."""
        assert self._keys_GNW is not None
        assert self._values_GNV is not None
        return self._keys_GNW, self._values_GNV

    @property
    def length_1(self) -> Tensor:
        """Tokens held with that of a single-token pass, on the device."""
        return self._sequence.length_1

    @property
    def nbytes(self) -> int:
        """Of keys and values, room included."""
        return sum(t.nbytes for t in (self._keys_GNW, self._values_GNV) if t is not None)

    @property
    def token_bytes(self) -> int:
        """Of one token's key and value; 0 before the first pass."""
        held = [t for t in (self._keys_GNW, self._values_GNV) if t is not None]
        return sum(t.shape[0] * t.shape[2] * t.itemsize for t in held)

    def resize(self, room: int, held: int) -> None:
        """Take room for exactly so many tokens and keep the first ``held``. Where a captured step may hold the
        buffers' addresses, on a GPU, they stay."""
        if self._keys_GNW is None or self._values_GNV is None or self._keys_GNW.is_cuda:
            return
        assert held <= room
        fresh = []
        for old in (self._keys_GNW, self._values_GNV):
            buffer = old.new_empty(old.shape[0], room, old.shape[2])
            buffer[:, :held] = old[:, :held]
            fresh.append(buffer)
        self._keys_GNW, self._values_GNV = fresh

    def attend(
        self,
        query_HTW: Tensor,
        key_GTW: Tensor,
        value_GTV: Tensor,
        *,
        scale: float,
        window: int | None,
        sinks_H: Tensor | None,
        softcap: float | None,
    ) -> Tensor:
        """Append the tokens, attend causally; ``[T, H, V]``."""
        self.seen = T = key_GTW.shape[1]
        self.asked = Asked(scale, window, sinks_H, softcap)
        start = self._sequence.start
        self._reserve(start + T, key_GTW, value_GTV)
        assert self._keys_GNW is not None
        assert self._values_GNV is not None
        if T == 1 and key_GTW.is_cuda and softcap is None:
            at = self._sequence.position_1
            self._keys_GNW.index_copy_(1, at, key_GTW)
            self._values_GNV.index_copy_(1, at, value_GTV)
            return self._one(query_HTW, scale, window, sinks_H)
        self._keys_GNW[:, start : start + T] = key_GTW
        self._values_GNV[:, start : start + T] = value_GTV
        first = max(0, start + 1 - window) if window else 0
        keys, values = self._keys_GNW[:, first : start + T], self._values_GNV[:, first : start + T]
        by_hand = sinks_H is not None or softcap is not None or (window is not None and start + T > window and T > 1)
        if by_hand:
            return _by_hand(query_HTW, keys, values, scale, window, sinks_H, softcap)
        return _fused(query_HTW, keys, values, scale)

    def _reserve(self, end: int, key_GTW: Tensor, value_GTV: Tensor) -> None:
        if self._keys_GNW is not None and end <= self._keys_GNW.shape[1]:
            return
        on_gpu = key_GTW.is_cuda
        room = self._sequence.room if on_gpu else max(2 * end, _MIN_ROOM)
        held = self._sequence.start
        fresh = []
        for old, new in ((self._keys_GNW, key_GTW), (self._values_GNV, value_GTV)):
            buffer = new.new_zeros(new.shape[0], room, new.shape[2])
            if old is not None:
                buffer[:, :held] = old[:, :held]
            fresh.append(buffer)
        self._keys_GNW, self._values_GNV = fresh

    def _one(self, query_H1W: Tensor, scale: float, window: int | None, sinks_H: Tensor | None) -> Tensor:
        import triton

        from engines.ostinato.attention_kernels import attend_join, attend_part

        assert self._keys_GNW is not None
        assert self._values_GNV is not None
        keys, values = self._keys_GNW, self._values_GNV
        H, W, V = query_H1W.shape[0], keys.shape[2], values.shape[2]
        share = H // keys.shape[0]
        query = query_H1W.contiguous()
        partial = torch.empty(H, _PARTS, V, dtype=torch.float32, device=keys.device)
        tops = torch.empty(H, _PARTS, dtype=torch.float32, device=keys.device)
        sums = torch.empty_like(tops)
        out = torch.empty(1, H, V, dtype=query.dtype, device=keys.device)
        bw, bv = max(16, triton.next_power_of_2(W)), max(16, triton.next_power_of_2(V))
        attend_part[(keys.shape[0], _PARTS)](
            query, keys, values, self._sequence.length_1, partial, tops, sums, scale, window or _ALL,
            keys.shape[1], share, max(16, triton.next_power_of_2(share)), W, bw, V, bv, _PARTS, 64,
        )  # fmt: skip
        attend_join[(H,)](partial, tops, sums, sinks_H, out, V, bv, _PARTS, sinks_H is not None)
        return out


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - causal by construction; the interface passes it
    scaling: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: ``[1, H, T, W]`` queries, ``[1, G, T, W]`` new keys → ``[1, T, H, V]``."""
    layer: LayerKv = module.ostinato_kv  # type: ignore[assignment]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = layer.attend(query[0], key[0], value[0], scale=scale, window=sliding_window, sinks_H=s_aux, softcap=softcap)
    return out[None], None


AttentionInterface.register(NAME, torch.compiler.disable(attention_forward))


def _fused(query_HTW: Tensor, keys_GSW: Tensor, values_GSV: Tensor, scale: float) -> Tensor:
    H, T, W = query_HTW.shape
    G, S, _ = keys_GSW.shape
    if T == 1:  # heads that share keys attend together, so the keys are read once
        packed = query_HTW.reshape(1, G, H // G, W)
        out = scaled_dot_product_attention(packed, keys_GSW[None], values_GSV[None], scale=scale)
        return out.reshape(1, H, -1)
    query, keys, values = query_HTW[None], keys_GSW[None], values_GSV[None]
    if query.is_cuda and query.dtype != torch.float32 and values.shape[-1] == W and W % 8 == 0 and W <= _FLASH_WIDTH:
        # What the bias below leads to as well, without repeating the keys: causal means lower right in this operator.
        flash = torch.ops.aten._scaled_dot_product_flash_attention  # noqa: SLF001
        attended: Tensor = flash(query, keys, values, 0.0, True, False, scale=scale)[0][0]
        return attended.transpose(0, 1)
    if G != H:
        keys, values = (x.repeat_interleave(H // G, 1) for x in (keys, values))
    if T == S:
        out = scaled_dot_product_attention(query, keys, values, is_causal=True, scale=scale)
    else:
        bias: Any = causal_lower_right(T, S)
        out = scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=scale)
    return out[0].transpose(0, 1)


def _by_hand(
    query_HTW: Tensor,
    keys_GSW: Tensor,
    values_GSV: Tensor,
    scale: float,
    window: int | None,
    sinks_H: Tensor | None,
    softcap: float | None,
) -> Tensor:
    """Attention with a window, sinks or a soft cap, a few rows at a time."""
    H, T, _ = query_HTW.shape
    G, S, _ = keys_GSW.shape
    at_S = torch.arange(S, device=keys_GSW.device)
    outs = []
    for first in range(0, T, _QUERY_ROWS):
        rows = query_HTW[:, first : first + _QUERY_ROWS]
        t = rows.shape[1]
        packed = rows.reshape(G, (H // G) * t, -1)
        scores = (packed.float() @ keys_GSW.float().mT * scale).reshape(H, t, S)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        own = torch.arange(S - T + first, S - T + first + t, device=keys_GSW.device)[:, None]
        hidden = at_S > own if window is None else (at_S > own) | (at_S <= own - window)
        scores = scores.masked_fill(hidden, float("-inf"))
        if sinks_H is not None:
            column = sinks_H.float()[:, None, None].expand(H, t, 1)
            shares = torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1]
        else:
            shares = torch.softmax(scores, -1)
        out = shares.reshape(G, (H // G) * t, S) @ values_GSV.float()
        outs.append(out.reshape(H, t, -1).transpose(0, 1).to(query_HTW.dtype))
    return torch.cat(outs)
