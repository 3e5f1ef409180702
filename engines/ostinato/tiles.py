"""How much of a matrix one program of a single token's product takes: enough bytes on their way, in few steps."""

from dataclasses import dataclass

_VALUES = 8192
"""16 KiB of bfloat16: four warps have it on its way in 16-byte pieces, eight a thread."""
_MOST_COLUMNS = 4096
_MOST_ROWS = 16


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and columns (powers of two) that a program has on their way at a time."""

    rows: int
    columns: int
    warps: int


def tile(inputs: int, rows: int | None = None) -> Tile:
    """For rows of ``inputs`` values; whole ones where they are a power of two."""
    whole = 1 << (inputs - 1).bit_length()
    columns = next((size for size in (_MOST_COLUMNS, _MOST_COLUMNS // 2) if inputs % size == 0), min(whole, 1024))
    return Tile(rows or max(1, min(_MOST_ROWS, _VALUES // columns)), columns, 4)
