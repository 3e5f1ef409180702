"""Products with MXFP4 matrices in Triton: 4-bit values are decoded on the way to the multiplication.

Values of even columns and those of odd ones are taken apart, as their nibbles lie, and meet the even and the odd
activations; a decoded value is exact in bfloat16.
"""

# Triton reads annotations, so only its own stand here.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl


@triton.jit
def _e2m1(code):
    """The float32 of 4-bit codes (int32): sign, two bits of exponent, one of mantissa."""
    size = code & 7
    # From 1 on the bits lie as in a float32 whose exponent is 126 higher; 0 and 0.5 have patterns of their own.
    bits = tl.where(size < 2, size * 0x3F000000, (size << 22) + 0x3F000000) | ((code & 8) << 28)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _decoded(values, scales, rows, pairs, mask, WIDTH: tl.constexpr):
    """Columns 2 · pairs and 2 · pairs + 1 of rows of WIDTH columns; 32 of them share 2^(scale − 127)."""
    byte = tl.load(values + rows * (WIDTH // 2) + pairs, mask=mask, other=0).to(tl.int32)
    power = tl.load(scales + rows * (WIDTH // 32) + pairs // 16, mask=mask, other=0).to(tl.int32)
    scale = (power << 23).to(tl.float32, bitcast=True)
    return _e2m1(byte & 15) * scale, _e2m1(byte >> 4) * scale


@triton.jit
def dot_mxfp4(
    acc, a_rows, here, values, scales, rows, inside,
    WIDTH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """``acc [BM, BN] + a · Wᵀ``.

    ``a_rows [BM]`` point at rows of WIDTH activations, valid where ``here``; ``values`` and ``scales`` are addresses
    of the matrix, of which ``rows [BN]`` are wanted where ``inside``.
    """
    dtype = a_rows.dtype.element_ty
    value = values.to(tl.pointer_type(tl.uint8))
    scale = scales.to(tl.pointer_type(tl.uint8))
    for k in range(0, WIDTH // 2, BK // 2):
        pairs = k + tl.arange(0, BK // 2)
        valid = pairs < WIDTH // 2
        a = a_rows[:, None] + 2 * pairs[None, :]
        mask = here[:, None] & valid[None, :]
        even = tl.load(a, mask=mask, other=0.0)
        odd = tl.load(a + 1, mask=mask, other=0.0)
        w0, w1 = _decoded(value, scale, rows[None, :], pairs[:, None], inside[None, :] & valid[:, None], WIDTH)
        acc = tl.dot(even, w0.to(dtype), acc, input_precision="ieee")
        acc = tl.dot(odd, w1.to(dtype), acc, input_precision="ieee")
    return acc


@triton.jit
def row_sums_mxfp4(
    x, values, scales, rows, inside,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """``W[rows] · x`` for one vector of WIDTH activations at the pointer ``x``, float32 ``[ROWS]``."""
    value = values.to(tl.pointer_type(tl.uint8))
    scale = scales.to(tl.pointer_type(tl.uint8))
    acc = tl.zeros((ROWS, BD // 2), tl.float32)
    for d in range(0, WIDTH // 2, BD // 2):
        pairs = d + tl.arange(0, BD // 2)
        valid = pairs < WIDTH // 2
        even = tl.load(x + 2 * pairs, mask=valid, other=0.0).to(tl.float32)
        odd = tl.load(x + 2 * pairs + 1, mask=valid, other=0.0).to(tl.float32)
        w0, w1 = _decoded(value, scale, rows[:, None], pairs[None, :], inside[:, None] & valid[None, :], WIDTH)
        acc += w0 * even[None, :] + w1 * odd[None, :]
    return tl.sum(acc, 1)
