"""Which sequences an engine with prefix reuse would still hold."""

import threading
from collections import deque


class PrefixCache:
    """Which tokens of a prompt the engine would still have keys and values for."""

    def __init__(self, sequences: int) -> None:
        self._kept: deque[tuple[int, ...]] = deque(maxlen=sequences)
        self._lock = threading.Lock()

    def cached_tokens(self, prompt_ids: tuple[int, ...]) -> int:
        """The longest common prefix with a kept sequence; the last token is always computed anew."""
        with self._lock:
            longest = max((common_prefix(ids, prompt_ids) for ids in self._kept), default=0)
        return min(longest, len(prompt_ids) - 1)

    def keep(self, ids: tuple[int, ...]) -> None:
        with self._lock:
            for grown in [kept for kept in self._kept if ids[: len(kept)] == kept]:
                self._kept.remove(grown)
            self._kept.append(ids)


def common_prefix(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """How many leading ids are the same; slices compare in C, so halving beats a loop."""
    same, differ = 0, min(len(a), len(b)) + 1
    while differ - same > 1:
        middle = (same + differ) // 2
        if a[same:middle] == b[same:middle]:
            same = middle
        else:
            differ = middle
    return same
