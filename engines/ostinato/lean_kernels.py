"""Triton kernels of a lean decoder layer: one token's products with whole rows of weights in flight at a time.

Values are rounded to the model's dtype wherever transformers rounds them. With PDL a kernel may start before the one
ahead of it has ended (programmatic dependent launch): it reads weights before ``gdc_wait``, everything else after.
"""

# Triton reads annotations, so only its own stand here.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from engines.ostinato.attention_kernels import attend_span, keep_part

# Shapes: D = inputs, R = outputs (rows of the weights), H = query heads, G = key/value heads, W = head width,
# N = room in tokens, P = parts.


@triton.jit
def _input(x, norm, rstd, cols, D: tl.constexpr, NORM: tl.constexpr):
    """Values of the (normed) input, float32."""
    value = tl.load(x + cols, mask=cols < D, other=0.0)
    if NORM:
        weight = tl.load(norm + cols, mask=cols < D, other=0.0).to(tl.float32)
        value = (value.to(tl.float32) * rstd * weight).to(x.dtype.element_ty)
    return value.to(tl.float32)


@triton.jit
def product(
    x, norm, weights, bias, residual, out, normed, eps,
    D: tl.constexpr, R: tl.constexpr, BX: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, NORM: tl.constexpr,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, KEEP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """``out = W · rms_norm(x) (+ bias) (+ residual)``; KEEP: the first program leaves the normed x in ``normed``."""
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    cols = tl.arange(0, BD)
    inside = (rows < R)[:, None]
    row = weights + rows.to(tl.int64)[:, None] * D
    tile = tl.load(row + cols[None, :], mask=inside & (cols < D)[None, :], other=0.0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    rstd = 1.0
    if NORM:
        whole = tl.arange(0, BX)
        value = tl.load(x + whole, mask=whole < D, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(value * value, 0) / D + eps)
        if KEEP:  # noqa: SIM102 - one is known when the kernel is compiled
            if tl.program_id(0) == 0:
                kept = _input(x, norm, rstd, whole, D, NORM)
                tl.store(normed + whole, kept.to(normed.dtype.element_ty), mask=whole < D)
    acc = tile.to(tl.float32) * _input(x, norm, rstd, cols, D, NORM)[None, :]
    for d in range(BD, D, BD):
        more = d + cols
        tile = tl.load(row + more[None, :], mask=inside & (more < D)[None, :], other=0.0)
        acc += tile.to(tl.float32) * _input(x, norm, rstd, more, D, NORM)[None, :]
    y = tl.sum(acc, 1)
    if BIAS:
        y += tl.load(bias + rows, mask=rows < R, other=0.0).to(tl.float32)
    if RESIDUAL:
        y = y.to(out.dtype.element_ty).to(tl.float32)
        y += tl.load(residual + rows, mask=rows < R, other=0.0).to(tl.float32)
    tl.store(out + rows, y.to(out.dtype.element_ty), mask=rows < R)


@triton.jit
def _turned(
    x, norm, cos, sin, eps, heads, valid,
    W: tl.constexpr, BW: tl.constexpr, ROT: tl.constexpr, COS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Heads ``[heads, BW]`` of one projection, normed one by one where the model does that, with rotary positions.

    The first ROT values of a head turn; value i goes with i ± ROT / 2. ``cos`` and ``sin`` have COS values.
    """
    dtype = x.dtype.element_ty
    at = tl.arange(0, BW)
    inside = valid[:, None] & (at < W)[None, :]
    turns = at < ROT
    pair = tl.where(turns, tl.where(at < ROT // 2, at + ROT // 2, at - ROT // 2), at)
    value = tl.load(x + heads[:, None] * W + at[None, :], mask=inside, other=0.0)
    other = tl.load(x + heads[:, None] * W + pair[None, :], mask=inside, other=0.0)
    if NORM:
        wide = value.to(tl.float32)
        rstd = tl.rsqrt(tl.sum(wide * wide, 1) / W + eps)[:, None]
        scale = tl.load(norm + at, mask=at < W, other=0.0).to(tl.float32)[None, :]
        scale_other = tl.load(norm + pair, mask=at < W, other=0.0).to(tl.float32)[None, :]
        value = (wide * rstd * scale).to(dtype)
        other = (other.to(tl.float32) * rstd * scale_other).to(dtype)
    c = tl.load(cos + at % COS, mask=turns, other=1.0).to(tl.float32)[None, :]
    s = tl.load(sin + at % COS, mask=turns, other=0.0).to(tl.float32)
    s = tl.where(at < ROT // 2, -s, s)[None, :]
    straight = (value.to(tl.float32) * c).to(dtype).to(tl.float32)
    across = (other.to(tl.float32) * s).to(dtype).to(tl.float32)
    return (straight + across).to(dtype)


@triton.jit
def attend_new(
    qkv, q_norm, k_norm, cos, sin, keys, values, length, partial, tops, sums, scale, eps, window,
    N: tl.constexpr, H: tl.constexpr, G: tl.constexpr, SHARED: tl.constexpr, W: tl.constexpr, BW: tl.constexpr,
    ROT: tl.constexpr, COS: tl.constexpr, NORM: tl.constexpr, PARTS: tl.constexpr, BN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """``attend_part`` for a token whose query, key and value come straight from their product.

    Parts share the tokens before it; the last one also takes the new token and writes its key and value.
    """
    group = tl.program_id(0)
    part = tl.program_id(1)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    SHARE: tl.constexpr = H // G
    own = tl.load(length).to(tl.int32) - 1
    first = tl.maximum(own + 1 - window, 0)
    span = tl.cdiv(tl.cdiv(own - first, PARTS), BN) * BN
    begin = first + part * span
    end = tl.minimum(begin + span, own)
    heads = tl.arange(0, SHARED)
    valid = heads < SHARE
    head = group * SHARE + heads
    at_w = tl.arange(0, BW)
    query = _turned(qkv, q_norm, cos, sin, eps, head, valid, W, BW, ROT, COS, NORM)
    top = tl.full((SHARED,), -1e30, tl.float32)
    total = tl.zeros((SHARED,), tl.float32)
    acc = tl.zeros((SHARED, BW), tl.float32)
    key = keys + group.to(tl.int64) * N * W
    value = values + group.to(tl.int64) * N * W
    if part == PARTS - 1:
        one = tl.arange(0, 1)
        new_k = _turned(qkv, k_norm, cos, sin, eps, H + group + one, one == 0, W, BW, ROT, COS, NORM)
        new_v = tl.load(qkv + (H + G + group) * W + at_w, mask=at_w < W, other=0.0)
        place = own.to(tl.int64) * W + at_w
        tl.store(key + place[None, :], new_k, mask=(at_w < W)[None, :])
        tl.store(value + place, new_v, mask=at_w < W)
        top = tl.sum(query.to(tl.float32) * new_k.to(tl.float32), 1) * scale
        total = tl.full((SHARED,), 1.0, tl.float32)
        acc += new_v.to(tl.float32)[None, :]
    top, total, acc = attend_span(query, key, value, begin, end, top, total, acc, scale, W, BW, W, BW, BN)
    keep_part(partial, tops, sums, head * PARTS + part, valid, top, total, acc, W, BW)
