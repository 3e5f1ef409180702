"""What two sequences share from their start."""

from collections.abc import Sequence


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading elements two sequences share."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    return next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
