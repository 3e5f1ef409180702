"""Draws random bfloat16 weights in blocks: the same numbers for a seed and a tensor name, in any order.

A value is one of 65,536 equally likely normal quantiles, looked up by 16 random bits: about 0.9 GB/s a core, six
times faster than drawing and rounding floats, and no different for what a benchmark measures.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 20
"""Elements drawn from one generator; part of the weights' definition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One tensor: ``mean + scale * normal``, each row times ``exp(row_spread * normal)``."""

    name: str
    """The Hugging Face name; also what the generator is seeded with."""
    shape: tuple[int, ...]
    scale: float
    mean: float = 0.0
    row_spread: float = 0.0
    gguf_name: str
    gguf_part: int = 0
    """Which slice of a stacked GGUF tensor this is."""

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def blocks(self) -> range:
        """First element of each block."""
        return range(0, self.size, BLOCK)


def to_bf16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round finite float32 values to bfloat16 bit patterns, to nearest, ties to even."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_float32(bf16: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The exact float32 values of bfloat16 bit patterns."""
    return (bf16.astype(np.uint32) << 16).view(np.float32)


def draw(weight: Weight, start: int, seed: int) -> NDArray[np.uint16]:
    """The bfloat16 bits of the block that begins at element ``start``, flat."""
    stop = min(start + BLOCK, weight.size)
    index = _bits(seed, weight.name, start // BLOCK, stop - start)
    if not weight.row_spread:
        return _table(weight.scale, weight.mean).take(index)
    width = weight.shape[-1]
    rows = np.arange(start, stop) // width
    spread = _quantiles().take(_bits(seed, f"{weight.name}#rows", 0, weight.size // width))
    scales = weight.scale * np.exp(weight.row_spread * spread)
    return to_bf16((_quantiles().take(index) * scales[rows] + weight.mean).astype(np.float32))


def _bits(seed: int, name: str, block: int, count: int) -> NDArray[np.uint16]:
    key = np.frombuffer(hashlib.sha256(name.encode()).digest()[:16], np.uint32)
    generator = np.random.SFC64(np.random.SeedSequence(seed, spawn_key=(*map(int, key), block)))
    return generator.random_raw((count + 3) // 4).view(np.uint16)[:count]


@lru_cache(maxsize=1)
def _quantiles() -> NDArray[np.float64]:
    normal = NormalDist()
    return np.array([normal.inv_cdf((i + 0.5) / 65536) for i in range(65536)])


@lru_cache(maxsize=64)
def _table(scale: float, mean: float) -> NDArray[np.uint16]:
    return to_bf16((_quantiles() * scale + mean).astype(np.float32))
