"""The fields of traces that hold lengths and block hashes, checked."""

from typing import Any

from workloads.formats.recognise import looks_like
from workloads.session import WorkloadError

LONGEST = 1 << 24
"""Tokens; a longer input is a broken number, not a prompt."""


def count(value: Any, place: str) -> int:
    """Return a count of tokens.

    Raises:
        WorkloadError: no whole number, or one that can't be.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LONGEST:
        raise WorkloadError(f"{place}: must be a count of tokens up to {LONGEST:,}, found {value!r:.40}")
    return value


def hashes(value: Any, place: str) -> list[int]:
    """Return a list of block hashes.

    Raises:
        WorkloadError: no list of whole numbers that are not negative.
    """
    if not isinstance(value, list):
        raise WorkloadError(f"{place}: must be a list of block hashes, found {looks_like(value)}")
    for one in value:
        if isinstance(one, bool) or not isinstance(one, int) or one < 0:
            raise WorkloadError(f"{place}: a block hash is a whole number of 0 or more, found {one!r:.40}")
    return value
