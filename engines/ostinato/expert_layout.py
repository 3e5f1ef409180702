"""How one expert lies in memory: the same bytes on the host, in a GPU slot and on the way between them."""

from dataclasses import dataclass
from functools import cached_property

# Shapes: D = hidden size, I = an expert's inner width.

MXFP4_GROUP = 32
"""Values that share one scale (OCP microscaling: 16 bytes of 4-bit values and one E8M0 byte)."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Activation:
    """What stands between an expert's two products, element by element, with g the gate's and u the up product."""

    kind: str = "silu"
    """``silu``: silu(g)·u · ``gelu_tanh``: gelu_tanh(g)·u · ``silu_clamp``: silu(min(g, limit))·clamp(u, ±limit) ·
    ``swiglu_oai``: with g = min(g, limit), u = clamp(u, ±limit): g·sigmoid(alpha·g)·(u + 1)."""
    alpha: float = 1.0
    limit: float = float("inf")


@dataclass(frozen=True)
class ExpertLayout:
    """One contiguous block an expert: gate ``[I, D]``, up ``[I, D]``, down ``[D, I]``, rows contiguous, then (with
    ``bias``) the float32 vectors gate ``[I]``, up ``[I]``, down ``[D]``. An mxfp4 matrix is its rows of packed 4-bit
    values (the lower half of a byte first), then its rows of scales. Each part starts at a multiple of 64 bytes.
    """

    hidden: int
    width: int
    dtype: str
    """``float32``, ``bfloat16``, ``float16`` or ``mxfp4``."""
    bias: bool = False
    activation: Activation = Activation()

    @cached_property
    def parts(self) -> dict[str, tuple[int, int]]:
        """Part → (offset, bytes): gate, up, down, with mxfp4 also gate_scales, …, with bias also gate_bias, …"""
        sizes: dict[str, int] = {}
        shapes = {
            "gate": (self.width, self.hidden),
            "up": (self.width, self.hidden),
            "down": (self.hidden, self.width),
        }
        for name, (rows, columns) in shapes.items():
            if self.dtype == "mxfp4":
                sizes[name] = rows * columns // 2
                sizes[f"{name}_scales"] = rows * columns // MXFP4_GROUP
            else:
                sizes[name] = rows * columns * _BYTES[self.dtype]
        if self.bias:
            sizes |= {f"{name}_bias": 4 * rows for name, (rows, _) in shapes.items()}
        offsets, end = {}, 0
        for name, size in sizes.items():
            offsets[name] = (end, size)
            end = -(-(end + size) // _ALIGN) * _ALIGN
        return offsets

    @cached_property
    def nbytes(self) -> int:
        """Of one expert, padding included."""
        offset, size = next(reversed(self.parts.values()))
        return -(-(offset + size) // _ALIGN) * _ALIGN
