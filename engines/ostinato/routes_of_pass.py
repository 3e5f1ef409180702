"""A pass's routes sorted by expert, on the host."""

from functools import cached_property

import numpy as np


class Routes:
    """Which routes of a pass go to which expert.

    Args:
        ids_TK: the experts of each token.
    """

    def __init__(self, ids_TK: np.ndarray, experts: int) -> None:
        self.tokens, self.per_token = ids_TK.shape
        flat = ids_TK.reshape(-1)
        self.order_R = np.argsort(flat, kind="stable").astype(np.int32)
        """Flat route numbers (token · K + k), by expert, within one by token."""
        self.counts_E = np.bincount(flat, minlength=experts)
        """Routes of each expert."""
        self.starts_E = np.concatenate([[0], np.cumsum(self.counts_E)])
        """Where each expert's routes begin in ``order_R``."""

    @cached_property
    def used(self) -> np.ndarray:
        """Experts with at least one route, in order."""
        return np.flatnonzero(self.counts_E)

    def of(self, expert: int) -> np.ndarray:
        """An expert's flat route numbers."""
        return self.order_R[self.starts_E[expert] : self.starts_E[expert + 1]]

    def gather(self, experts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Several experts' routes one after the other, and where each begins (one more than experts), int32."""
        counts = self.counts_E[experts]
        starts = np.zeros(len(experts) + 1, np.int32)
        np.cumsum(counts, out=starts[1:])
        shift = np.repeat(self.starts_E[experts] - starts[:-1], counts)
        return self.order_R[shift + np.arange(starts[-1])], starts
