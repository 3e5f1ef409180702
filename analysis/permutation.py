"""Sign-flip permutation of paired sessions. Shapes: S = sessions, F = flips."""

import numpy as np

from analysis.resampling import RESAMPLES, Floats

EXACT_FLIPS = 16
"""Sessions up to which all ``2**S`` sign flips are tried; above, ``RESAMPLES`` random ones."""


def sign_flip_p(baseline_S: Floats, candidate_S: Floats, rng: np.random.Generator) -> float:
    """Two-sided sign-flip permutation test of "the labels of a session's two times may be swapped".

    The share of flips with ``abs(sum(+-d)) >= abs(sum(d))``, ``d = A - B``. Exact up to ``EXACT_FLIPS`` sessions,
    else ``RESAMPLES`` random flips, the observed one counted (Phipson & Smyth 2010).
    """
    difference_S = baseline_S - candidate_S
    n = len(difference_S)
    exact = n <= EXACT_FLIPS
    bits_FS = (
        np.arange(2**n)[:, None] >> np.arange(n) & 1 if exact else rng.integers(0, 2, (RESAMPLES, n), dtype=np.int8)
    )
    signs_FS = bits_FS * 2.0 - 1
    tolerance = 1e-12 * float(np.abs(difference_S).sum())  # sums of other order are equal to rounding only
    extreme = int((np.abs(signs_FS @ difference_S) >= abs(float(difference_S.sum())) - tolerance).sum())
    return extreme / len(signs_FS) if exact else (extreme + 1) / (len(signs_FS) + 1)
