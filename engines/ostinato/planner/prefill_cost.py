"""When a prefill should upload its cold experts (Ostinato, proposition 3.2 and lemma B.3)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Shapes: L = MoE layers, E = experts.

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathDifference:
    """Split minus upload, in ms, of a pass with n tokens: Φ(n) = phi0 + phi1·n − phi2·ū(n).

    ``ū(n)`` is the expected number of distinct cold experts, summed over the layers.
    """

    phi0: float
    """Setup: negative, since uploading has more of it."""
    phi1: float
    """What one token's cold routes cost the CPU more than the GPU."""
    phi2: float
    """Uploading one expert."""

    def at(self, tokens: Floats, distinct: Floats) -> Floats:
        """Φ for passes of several sizes, ``[n]``."""
        return self.phi0 + self.phi1 * tokens - self.phi2 * distinct


def distinct_cold(shares_LE: Floats, cold_LE: NDArray[np.bool_], tokens: Floats) -> Floats:
    """ū(n): expected distinct cold experts of passes of several sizes, ``[n]``, if tokens were independent.

    Tokens of a pass resemble each other, so the true number is smaller; the shape (growing, concave, bounded: lemma
    B.3) is the same.

    Args:
        shares_LE: how often a token routes to each expert, 0 to 1.
        cold_LE: the experts without a slot.
    """
    cold = shares_LE[cold_LE]
    with np.errstate(divide="ignore"):
        log_unused = np.log1p(-np.minimum(cold, 1.0))
    with np.errstate(invalid="ignore"):
        used = -np.expm1(np.multiply.outer(tokens, log_unused))
    return np.where(tokens > 0, used.sum(1), 0.0)


def switch(difference: Floats) -> int | None:
    """The index from which the split path is no longer cheaper: n* of proposition 3.2; None if it always is.

    Args:
        difference: Φ(n) for increasing n.
    """
    dearer = np.flatnonzero(difference >= 0)
    return int(dearer[0]) if len(dearer) else None


def threshold(costs: PathDifference, shares_LE: Floats, cold_LE: NDArray[np.bool_], *, most: int) -> int | None:
    """Np: the fewest tokens for which uploading is predicted to be at least as fast; None up to ``most``."""
    if not cold_LE.any():
        return None  # nothing to upload: both paths are one
    low, high = 0, 1  # Φ is convex and Φ(0) < 0, so its sign changes once and doubling finds the change
    while _at(costs, shares_LE, cold_LE, high) < 0:
        low, high = high, 2 * high
        if low >= most:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _at(costs, shares_LE, cold_LE, middle) < 0 else (low, middle)
    return high if high <= most else None


def _at(costs: PathDifference, shares_LE: Floats, cold_LE: NDArray[np.bool_], tokens: int) -> float:
    n = np.array([float(tokens)])
    return float(costs.at(n, distinct_cold(shares_LE, cold_LE, n))[0])


def fit(tokens: Floats, split_ms: Floats, upload_ms: Floats, distinct: Floats) -> PathDifference | None:
    """Φ's three constants from a measured sweep (least squares); None from fewer than three sizes.

    None also where the fit contradicts the model's signs (phi0 < 0, phi1 > 0, phi2 > 0): the sweep's own crossing is
    then the better guide.
    """
    if len(tokens) < 3:
        return None
    columns = np.stack([np.ones_like(tokens), tokens, -distinct], axis=1)
    solution, _, rank, _ = np.linalg.lstsq(columns, split_ms - upload_ms, rcond=None)
    phi0, phi1, phi2 = map(float, solution)
    if rank < 3 or phi0 >= 0 or phi1 <= 0 or phi2 <= 0:
        return None
    return PathDifference(phi0=phi0, phi1=phi1, phi2=phi2)
