"""Log-probabilities of a step's tokens, from its logits."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Shapes: V = vocabulary.


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logarithms at temperature 1."""

    taken: float
    """Of the token that was taken, forced or chosen."""
    top: tuple[tuple[int, float], ...]
    """(id, log-probability) of the most probable ones, falling; equal ones by id."""


def of(logits_V: NDArray[np.float32], taken: int, count: int) -> Logprobs:
    """The logarithm of the softmax, computed in 64 bits; ``taken`` and the ``count`` largest."""
    x_V = logits_V.astype(np.float64)
    x_V -= x_V.max()
    x_V -= np.log(np.exp(x_V).sum())
    count = min(count, len(x_V))
    top: NDArray[np.intp] = np.zeros(0, np.intp)
    if count:
        least = np.partition(x_V, -count)[-count]
        found = np.flatnonzero(x_V >= least)
        top = found[np.argsort(-x_V[found], kind="stable")][:count]
    return Logprobs(float(x_V[taken]), tuple((int(i), float(x_V[i])) for i in top))
