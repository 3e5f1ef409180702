"""Routes as a synthetic model's router makes them, without running the model."""

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.planner.routes import RouteTrace

# Shapes: N = decode steps, L = MoE layers, E = experts, K = experts per token.

_BLOCK = 1024


def synthetic_routes(
    *,
    layers: int,
    experts: int,
    experts_per_token: int,
    steps: int,
    steps_per_request: int,
    rng: np.random.Generator,
    spread: float = 0.45,
    sameness: float = 0.25,
) -> RouteTrace:
    """Draw a trace.

    A router's row has a log-normal length (``router_spread`` of the synthetic models), so some experts' logits are
    larger than others' in either direction.

    Args:
        spread: standard deviation of the logarithm of the rows' lengths; 0 routes evenly.
        sameness: share of a logit's variance that the tokens of a request have in common, 0 to 1.
    """
    scale_LE = np.exp(spread * rng.standard_normal((layers, experts))).astype(np.float32)
    request_N = (np.arange(steps) // steps_per_request).astype(np.int32)
    common = rng.standard_normal((int(request_N[-1]) + 1, layers, experts), np.float32) * np.float32(sameness**0.5)
    routes = np.empty((steps, layers, experts_per_token), np.int16)
    for start in range(0, steps, _BLOCK):
        block = request_N[start : start + _BLOCK]
        logits = rng.standard_normal((len(block), layers, experts), np.float32)
        logits *= np.float32((1 - sameness) ** 0.5)
        logits += common[block]
        logits *= scale_LE
        routes[start : start + _BLOCK] = _top(logits, experts_per_token)
    return RouteTrace(
        experts_NLK=routes, request_N=request_N, experts=experts, model_hash="synthetic", workload_hash="synthetic"
    )


def _top(logits: NDArray[np.float32], count: int) -> NDArray[np.int16]:
    return np.argpartition(logits, -count, axis=2)[:, :, -count:].astype(np.int16)
