"""Triton kernels over experts that are named by the address of their block, wherever it lies.

An address is a slot of the pool, a staged block, or page-locked host memory; 0 is an expert that this pass does not
compute. Both products accumulate in float32; the inner activations are rounded to the model's dtype once.
"""

# Triton reads annotations, so only its own stand here.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl

from engines.ostinato.mxfp4_kernels import dot_mxfp4, row_sums_mxfp4

# Shapes: T = tokens, K = experts a token, R = routes of a run, D = hidden size, I = inner width.

SILU, GELU_TANH, SILU_CLAMP, SWIGLU_OAI = 0, 1, 2, 3
ACTIVATIONS = {"silu": SILU, "gelu_tanh": GELU_TANH, "silu_clamp": SILU_CLAMP, "swiglu_oai": SWIGLU_OAI}


@triton.jit
def _activate(g, u, alpha, limit, ACTIVATION: tl.constexpr):
    if ACTIVATION == 1:
        inner = 0.7978845608028654 * (g + 0.044715 * g * g * g)
        return g * tl.sigmoid(2.0 * inner) * u  # 0.5 (1 + tanh z) = sigmoid(2 z)
    if ACTIVATION == 2:
        g = tl.minimum(g, limit)
        u = tl.minimum(tl.maximum(u, -limit), limit)
        return g * tl.sigmoid(g) * u
    if ACTIVATION == 3:
        g = tl.minimum(g, limit)
        u = tl.minimum(tl.maximum(u, -limit), limit)
        return g * tl.sigmoid(alpha * g) * (u + 1.0)
    return g * tl.sigmoid(g) * u


@triton.jit
def grouped_up(
    x, routes, addresses, starts, counts, h, alpha, limit,
    K: tl.constexpr, D: tl.constexpr, I: tl.constexpr, UP: tl.constexpr, GATE_BIAS: tl.constexpr,
    UP_BIAS: tl.constexpr, ACTIVATION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GATE_SCALES: tl.constexpr = 0, UP_SCALES: tl.constexpr = 0,
):  # fmt: skip
    """``h[r] = act(gate · x, up · x)`` for the routes of each block of one expert."""
    block = tl.program_id(0)
    address = tl.load(addresses + block)
    start = tl.load(starts + block)
    count = tl.load(counts + block)
    dtype = x.dtype.element_ty
    gate = address.to(tl.pointer_type(dtype))
    up = (address + UP).to(tl.pointer_type(dtype))
    offs = tl.arange(0, BM)
    here = offs < count
    token = tl.load(routes + start + offs, mask=here, other=0) // K
    rows = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = rows < I
    acc_g = tl.zeros((BM, BN), tl.float32)
    acc_u = tl.zeros((BM, BN), tl.float32)
    if GATE_SCALES > 0:
        a_rows = x + token.to(tl.int64) * D
        acc_g = dot_mxfp4(acc_g, a_rows, here, address, address + GATE_SCALES, rows, inside, D, BK)
        acc_u = dot_mxfp4(acc_u, a_rows, here, address + UP, address + UP_SCALES, rows, inside, D, BK)
    else:
        for k in range(0, D, BK):
            cols = k + tl.arange(0, BK)
            a = tl.load(
                x + token[:, None].to(tl.int64) * D + cols[None, :],
                mask=here[:, None] & (cols < D)[None, :],
                other=0.0,
            )
            w = inside[None, :] & (cols < D)[:, None]
            wg = tl.load(gate + rows[None, :] * D + cols[:, None], mask=w, other=0.0)
            wu = tl.load(up + rows[None, :] * D + cols[:, None], mask=w, other=0.0)
            acc_g = tl.dot(a, wg, acc_g, input_precision="ieee")
            acc_u = tl.dot(a, wu, acc_u, input_precision="ieee")
    if GATE_BIAS > 0:
        acc_g += tl.load((address + GATE_BIAS).to(tl.pointer_type(tl.float32)) + rows, mask=inside, other=0.0)[
            None, :
        ]
        acc_u += tl.load((address + UP_BIAS).to(tl.pointer_type(tl.float32)) + rows, mask=inside, other=0.0)[None, :]
    value = _activate(acc_g, acc_u, alpha, limit, ACTIVATION)
    tl.store(
        h + (start + offs)[:, None].to(tl.int64) * I + rows[None, :],
        value.to(dtype),
        mask=here[:, None] & inside[None, :],
    )


@triton.jit
def grouped_down(
    h, routes, weights, addresses, starts, counts, out,
    D: tl.constexpr, I: tl.constexpr, DOWN: tl.constexpr, DOWN_BIAS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, DOWN_SCALES: tl.constexpr = 0,
):  # fmt: skip
    """``out[route] = weight · (down · h)``: each route has a row of its own, so no order of adding matters here."""
    block = tl.program_id(0)
    address = tl.load(addresses + block)
    start = tl.load(starts + block)
    count = tl.load(counts + block)
    dtype = h.dtype.element_ty
    down = (address + DOWN).to(tl.pointer_type(dtype))
    offs = tl.arange(0, BM)
    here = offs < count
    route = tl.load(routes + start + offs, mask=here, other=0)
    rows = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = rows < D
    acc = tl.zeros((BM, BN), tl.float32)
    if DOWN_SCALES > 0:
        a_rows = h + (start + offs).to(tl.int64) * I
        acc = dot_mxfp4(acc, a_rows, here, address + DOWN, address + DOWN_SCALES, rows, inside, I, BK)
    else:
        for k in range(0, I, BK):
            cols = k + tl.arange(0, BK)
            a = tl.load(
                h + (start + offs)[:, None].to(tl.int64) * I + cols[None, :],
                mask=here[:, None] & (cols < I)[None, :],
                other=0.0,
            )
            w = tl.load(
                down + rows[None, :] * I + cols[:, None], mask=inside[None, :] & (cols < I)[:, None], other=0.0
            )
            acc = tl.dot(a, w, acc, input_precision="ieee")
    if DOWN_BIAS > 0:
        acc += tl.load((address + DOWN_BIAS).to(tl.pointer_type(tl.float32)) + rows, mask=inside, other=0.0)[None, :]
    acc *= tl.load(weights + route, mask=here, other=0.0).to(tl.float32)[:, None]
    tl.store(out + route[:, None].to(tl.int64) * D + rows[None, :], acc, mask=here[:, None] & inside[None, :])


@triton.jit
def combine(
    out_routes, ids, here, cpu, out,
    K: tl.constexpr, D: tl.constexpr, WITH_CPU: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """``out[t] = Σ_k out_routes[t, k] over the experts computed here (+ cpu[t])``, k in order."""
    t = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    inside = d < D
    acc = tl.zeros((BD,), tl.float32)
    for k in range(K):
        expert = tl.load(ids + t * K + k)
        if tl.load(here + expert) != 0:
            acc += tl.load(out_routes + (t * K + k) * D + d, mask=inside, other=0.0).to(tl.float32)
    if WITH_CPU:
        acc += tl.load(cpu + t * D + d, mask=inside, other=0.0)
    tl.store(out + t * D + d, acc, mask=inside)


@triton.jit
def decode_up(
    x, addresses, h, alpha, limit,
    D: tl.constexpr, I: tl.constexpr, UP: tl.constexpr, GATE_BIAS: tl.constexpr, UP_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr, BI: tl.constexpr, BD: tl.constexpr,
    GATE_SCALES: tl.constexpr = 0, UP_SCALES: tl.constexpr = 0,
):  # fmt: skip
    """One token: ``h[k] = act(gate_k · x, up_k · x)`` for each address; nothing is read where it is 0."""
    k = tl.program_id(0)
    address = tl.load(addresses + k)
    if address == 0:
        return
    dtype = x.dtype.element_ty
    rows = tl.program_id(1) * BI + tl.arange(0, BI)
    inside = (rows < I)[:, None]
    if GATE_SCALES > 0:
        g = row_sums_mxfp4(x, address, address + GATE_SCALES, rows, rows < I, D, BI, BD)
        u = row_sums_mxfp4(x, address + UP, address + UP_SCALES, rows, rows < I, D, BI, BD)
    else:
        gate = address.to(tl.pointer_type(dtype)) + rows[:, None] * D
        up = (address + UP).to(tl.pointer_type(dtype)) + rows[:, None] * D
        acc_g = tl.zeros((BI, BD), tl.float32)
        acc_u = tl.zeros((BI, BD), tl.float32)
        for d in range(0, D, BD):
            cols = d + tl.arange(0, BD)
            mask = inside & (cols < D)[None, :]
            value = tl.load(x + cols, mask=cols < D, other=0.0).to(tl.float32)[None, :]
            acc_g += tl.load(gate + cols[None, :], mask=mask, other=0.0).to(tl.float32) * value
            acc_u += tl.load(up + cols[None, :], mask=mask, other=0.0).to(tl.float32) * value
        g = tl.sum(acc_g, 1)
        u = tl.sum(acc_u, 1)
    if GATE_BIAS > 0:
        g += tl.load((address + GATE_BIAS).to(tl.pointer_type(tl.float32)) + rows, mask=rows < I, other=0.0)
        u += tl.load((address + UP_BIAS).to(tl.pointer_type(tl.float32)) + rows, mask=rows < I, other=0.0)
    tl.store(h + k * I + rows, _activate(g, u, alpha, limit, ACTIVATION).to(dtype), mask=rows < I)


@triton.jit
def decode_down(
    h, addresses, weights, out,
    K: tl.constexpr, D: tl.constexpr, I: tl.constexpr, DOWN: tl.constexpr, DOWN_BIAS: tl.constexpr,
    BR: tl.constexpr, BI: tl.constexpr, DOWN_SCALES: tl.constexpr = 0,
):  # fmt: skip
    """One token: ``out = Σ_k weight_k · (down_k · h_k)`` in float32, k in order, zero addresses left out."""
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    inside = (rows < D)[:, None]
    dtype = h.dtype.element_ty
    total = tl.zeros((BR,), tl.float32)
    for k in range(K):
        address = tl.load(addresses + k)
        if address != 0:
            if DOWN_SCALES > 0:
                y = row_sums_mxfp4(h + k * I, address + DOWN, address + DOWN_SCALES, rows, rows < D, I, BR, BI)
            else:
                down = (address + DOWN).to(tl.pointer_type(dtype)) + rows[:, None] * I
                acc = tl.zeros((BR, BI), tl.float32)
                for i in range(0, I, BI):
                    cols = i + tl.arange(0, BI)
                    value = tl.load(h + k * I + cols, mask=cols < I, other=0.0).to(tl.float32)[None, :]
                    acc += (
                        tl.load(down + cols[None, :], mask=inside & (cols < I)[None, :], other=0.0).to(tl.float32)
                        * value
                    )
                y = tl.sum(acc, 1)
            if DOWN_BIAS > 0:
                y += tl.load((address + DOWN_BIAS).to(tl.pointer_type(tl.float32)) + rows, mask=rows < D, other=0.0)
            total += tl.load(weights + k).to(tl.float32) * y
    tl.store(out + rows, total, mask=rows < D)
