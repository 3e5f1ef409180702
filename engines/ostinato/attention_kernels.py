"""Triton kernels for one query token over a long cache: the work follows the tokens held, not the room."""

# Triton reads annotations, so only its own stand here.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

# Shapes: H = query heads, G = key/value heads, N = room in tokens, W = key width, V = value width, P = parts.


@triton.jit
def attend_span(
    query, key, value, begin, end, top, total, acc, scale,
    W: tl.constexpr, BW: tl.constexpr, V: tl.constexpr, BV: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Tokens ``begin`` to ``end`` of one key head's cache into the running softmax ``(top, total, acc)``."""
    cw = tl.arange(0, BW)
    cv = tl.arange(0, BV)
    for n in range(begin, end, BN):
        at = n + tl.arange(0, BN)
        inside = at < end
        k = tl.load(
            key + at[None, :].to(tl.int64) * W + cw[:, None], mask=inside[None, :] & (cw < W)[:, None], other=0.0
        )
        s = tl.dot(query, k, input_precision="ieee") * scale
        s = tl.where(inside[None, :], s, -1e30)
        new = tl.maximum(top, tl.max(s, 1))
        shrink = tl.exp(top - new)
        p = tl.where(inside[None, :], tl.exp(s - new[:, None]), 0.0)
        v = tl.load(
            value + at[:, None].to(tl.int64) * V + cv[None, :], mask=inside[:, None] & (cv < V)[None, :], other=0.0
        )
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        total = total * shrink + tl.sum(p, 1)
        top = new
    return top, total, acc


@triton.jit
def keep_part(
    partial, tops, sums, row, valid, top, total, acc, V: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Write what ``attend_join`` joins: one part of each query head."""
    cv = tl.arange(0, BV)
    tl.store(partial + row[:, None] * V + cv[None, :], acc, mask=valid[:, None] & (cv < V)[None, :])
    tl.store(tops + row, top, mask=valid)
    tl.store(sums + row, total, mask=valid)


@triton.jit
def attend_part(
    q, keys, values, length, partial, tops, sums, scale, window,
    N: tl.constexpr, SHARE: tl.constexpr, SHARED: tl.constexpr, W: tl.constexpr, BW: tl.constexpr,
    V: tl.constexpr, BV: tl.constexpr, PARTS: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One part of the cache for the SHARE query heads of one key head (padded to SHARED): the softmax's numerator
    ``[H, P, V]``, running maximum and sum ``[H, P]``."""
    group = tl.program_id(0)
    part = tl.program_id(1)
    held = tl.load(length).to(tl.int32)
    first = tl.maximum(held - window, 0)
    span = tl.cdiv(tl.cdiv(held - first, PARTS), BN) * BN
    begin = first + part * span
    end = tl.minimum(begin + span, held)
    heads = tl.arange(0, SHARED)
    valid = heads < SHARE
    head = group * SHARE + heads
    cw = tl.arange(0, BW)
    query = tl.load(q + head[:, None] * W + cw[None, :], mask=valid[:, None] & (cw < W)[None, :], other=0.0)
    top = tl.full((SHARED,), -1e30, tl.float32)
    total = tl.zeros((SHARED,), tl.float32)
    acc = tl.zeros((SHARED, BV), tl.float32)
    key = keys + group.to(tl.int64) * N * W
    value = values + group.to(tl.int64) * N * V
    top, total, acc = attend_span(query, key, value, begin, end, top, total, acc, scale, W, BW, V, BV, BN)
    keep_part(partial, tops, sums, head * PARTS + part, valid, top, total, acc, V, BV)


@triton.jit
def attend_join(
    partial, tops, sums, sinks, out,
    V: tl.constexpr, BV: tl.constexpr, PARTS: tl.constexpr, WITH_SINKS: tl.constexpr, PDL: tl.constexpr = False,
):  # fmt: skip
    """The parts of one query head together; a sink takes its share of the softmax and adds no value."""
    head = tl.program_id(0)
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    parts = tl.arange(0, PARTS)
    cv = tl.arange(0, BV)
    top = tl.load(tops + head * PARTS + parts)
    most = tl.max(top, 0)
    if WITH_SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
        most = tl.maximum(most, sink)
    share = tl.exp(top - most)
    total = tl.sum(share * tl.load(sums + head * PARTS + parts), 0)
    if WITH_SINKS:
        total += tl.exp(sink - most)
    acc = tl.load(partial + (head * PARTS + parts)[:, None] * V + cv[None, :], mask=(cv < V)[None, :], other=0.0)
    tl.store(out + head * V + cv, tl.sum(acc * share[:, None], 0) / total, mask=cv < V)
