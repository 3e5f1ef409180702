"""What a decode step costs, and what residency changes of it (Ostinato, section 3.2 and appendix B).

Each MoE layer of a one-token step runs two branches: the GPU's, always K experts wide, and the CPU's, which computes
the cold routes. They run side by side and join before the next layer, so a layer takes the longer of the two.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Shapes: L = MoE layers, E = experts, K = experts per token, N = decode steps.

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCosts:
    """Calibrated times of one decode step in ms, each ``[L]`` or one number for all layers.

    The CPU branch takes C(0) = gamma0 and C(r) = alpha + beta·r for r ≥ 1 cold routes; the GPU branch takes ``gpu``.
    """

    gamma0: Floats | float
    alpha: Floats | float
    beta: Floats | float
    gpu: Floats | float
    dense: float = 0.0
    """The rest of the step: attention, dense layers, the output head, sampling."""

    @property
    def floor(self) -> Floats:
        """g = max(γ0, G): what a layer without cold routes takes."""
        return np.maximum(self.gamma0, self.gpu)

    @property
    def residual(self) -> Floats:
        """δ = α − g: what the first cold route adds beyond β."""
        return np.asarray(self.alpha - self.floor, np.float64)

    def check(self) -> str | None:
        """Why proposition B.1 does not hold for these costs, or None when it does."""
        if np.any(np.asarray(self.beta) < 0):
            return "β is negative: more cold routes took the CPU less time"
        if np.any(np.asarray(self.gpu) > np.asarray(self.alpha + self.beta) + 1e-12):
            return "G exceeds α + β: one cold route hides behind the GPU branch"
        return None


def cpu_branch_ms(costs: DecodeCosts, cold: NDArray[np.integer[Any]]) -> Floats:
    """C(r) for counts of cold routes, ``[..., L]``."""
    return np.where(cold > 0, costs.alpha + costs.beta * cold, np.broadcast_to(costs.gamma0, cold.shape))


def layers_ms(costs: DecodeCosts, cold: NDArray[np.integer[Any]], *, overlapped: bool = True) -> Floats:
    """max{C(r), G} of every layer, or C(r) + G when the branches run in turn; ``[..., L]``."""
    cpu = cpu_branch_ms(costs, cold)
    return np.maximum(cpu, costs.gpu) if overlapped else cpu + costs.gpu


def expected_layers_ms(costs: DecodeCosts, mu: Floats, q: Floats) -> Floats:
    """E max{C, G} = g + βμ + δq, per layer, for any joint distribution of the routes (proposition B.1).

    Args:
        mu: expected cold routes of a step, ``[L]``.
        q: probability that a step has any, ``[L]``.

    Raises:
        ValueError: β < 0 or G > α + β, where the equation does not hold.
    """
    if reason := costs.check():
        raise ValueError(f"the expected time of an overlapped layer has no closed form: {reason}")
    return costs.floor + costs.beta * mu + costs.residual * q


def step_ms(costs: DecodeCosts, mu: Floats, q: Floats) -> float:
    """The expected decode step: every layer, and what lies outside them."""
    return costs.dense + float(expected_layers_ms(costs, mu, q).sum())


def step_from_shares_ms(costs: DecodeCosts, share_LR: Floats, *, overlapped: bool = True) -> float:
    """The expected decode step from how often a layer has 0, 1, … cold routes; for any costs."""
    cold = np.broadcast_to(np.arange(share_LR.shape[1]), share_LR.shape)
    return costs.dense + float((share_LR.T * layers_ms(costs, cold.T, overlapped=overlapped)).sum())


def residency_ms(costs: DecodeCosts, mu: Floats, q: Floats) -> float:
    """F(H) = βM(H) + Q(H): the part of a step that depends on who is resident."""
    return float((costs.beta * mu + costs.residual * q).sum())


def gap_bound_ms(costs: DecodeCosts, q: Floats) -> float:
    """How far the most frequent experts can be from the best static residency: Q(H) = Σ δq (proposition 3.1).

    Holds where all layers have the same β and slots have one size. Proposition 3.1 asks for δ ≥ 0; a layer whose
    GPU branch exceeds α gains |δ| from a cold route instead, at most in the steps that have none.
    """
    residual = np.broadcast_to(costs.residual, q.shape)
    return float(np.where(residual >= 0, residual * q, -residual * (1 - q)).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """What a larger residency set saves of a decode step (proposition B.2), ms."""

    leading: float
    """ΔF0 = βΣΔμ."""
    full: float
    """ΔF, with the residual term."""
    least: float
    """ΔF0, or less where a layer's GPU branch exceeds α (δ < 0)."""
    most: float
    """(1 + δmax/β)·ΔF0; ΔF0 where no δ is positive."""


def increment(costs: DecodeCosts, *, mu: Floats, q: Floats, grown_mu: Floats, grown_q: Floats) -> Increment:
    """Compare a residency set with one that holds it.

    Args:
        mu, q: of the smaller set, ``[L]``.
        grown_mu, grown_q: of the larger one.
    """
    fewer = mu - grown_mu
    leading = float((costs.beta * fewer).sum())
    full = leading + float((costs.residual * (q - grown_q)).sum())
    total = float(fewer.sum())
    return Increment(
        leading=leading,
        full=full,
        least=leading + min(float(np.min(costs.residual)), 0.0) * total,
        most=leading + max(float(np.max(costs.residual)), 0.0) * total,
    )


def overlap_bound_ms(costs: DecodeCosts, cold: NDArray[np.integer[Any]]) -> float:
    """U = Σ E min{C(r), G}: the most that running the branches side by side can hide of a step.

    Args:
        cold: cold routes of every step and layer, ``[N, L]``.
    """
    return float(np.minimum(cpu_branch_ms(costs, cold), costs.gpu).mean(0).sum())


def overlap_bound_from_q_ms(costs: DecodeCosts, q: Floats) -> float:
    """U where G ≤ α + β: min{C, G} is min{γ0, G} in a step without cold routes, and G in any other."""
    return float(((1 - q) * np.minimum(costs.gamma0, costs.gpu) + q * costs.gpu).sum())
