"""Placements on recorded routes: what each would find on the GPUs, and what a decode step would take."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.placement.policy import MemoryBudget
from engines.ostinato.planner import prefill_cost
from engines.ostinato.planner.calibration import Calibration
from engines.ostinato.planner.plan import Gpu, plan
from engines.ostinato.planner.prefill_cost import PathDifference
from engines.ostinato.planner.residency import Residency
from engines.ostinato.planner.reuse import NEVER, distances, miss_curve
from engines.ostinato.planner.routes import RouteCounts, RouteTrace
from engines.ostinato.planner.simulate import Outcome, simulate

# Shapes: L = MoE layers, E = experts, C = expert slots a layer.

POLICIES = (
    "layers",
    "stream",
    "paging",
    "lru_cache",
    "decay_cache",
    "tensor_knapsack",
    "uniform:ranked=true",
    "ostinato:borrow=false",
    "ostinato",
)
"""As in ``--placement``; ``ostinato`` borrows where it is told how much."""
MOST_TOKENS = 65_536


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What a placement has to do with, in bytes."""

    expert_bytes: tuple[int, ...]
    """One expert of each MoE layer, ``[L]``; all 1 where sizes are not known, and room is then counted in experts."""
    gpus: tuple[range, ...]
    """The MoE layers of each."""
    borrowed_bytes: int = 0
    """Of each GPU."""

    def budgets(self, room: "Room", *, experts: int, experts_per_token: int) -> list[MemoryBudget]:
        return [
            MemoryBudget(
                layers=layers,
                experts=experts,
                experts_per_token=experts_per_token,
                expert_bytes=self.expert_bytes,
                pool_bytes=pool_bytes,
            )
            for layers, pool_bytes in zip(self.gpus, room.pool_bytes, strict=True)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Memory for experts."""

    name: str
    """As it was asked for: ``16GiB``, ``44 %``."""
    pool_bytes: tuple[int, ...]
    """On each GPU."""


def spread(layers: int, gpus: int) -> tuple[range, ...]:
    """Consecutive layers on each GPU, as evenly as can be."""
    return tuple(range(layers * gpu // gpus, layers * (gpu + 1) // gpus) for gpu in range(gpus))


@dataclass(frozen=True, kw_only=True)
class Routes:
    """What placements may learn from, and what they are judged by."""

    development: RouteCounts
    judged: RouteTrace
    same: bool = False
    """One recording with a single request is both, which flatters every placement that learns."""
    drawn: bool = False
    """Only counts were recorded: the steps are drawn from them, and what depends on their order is an estimate."""


def halves(trace: RouteTrace) -> Routes:
    """The first half of a recording's requests to learn from, the others to judge by."""
    requests = int(trace.request_N[-1]) + 1 if len(trace.request_N) else 0
    if requests < 2:
        return Routes(development=trace.counts(), judged=trace, same=True)
    return Routes(
        development=trace.requests(0, requests // 2).counts(), judged=trace.requests(requests // 2, requests)
    )


def draw(counts: RouteCounts, steps: int, rng: np.random.Generator, *, steps_per_request: int = 128) -> RouteTrace:
    """Steps that choose each expert as often as was counted, and the experts of a layer independently of each other.

    Systematic sampling in random order (Madow 1949): inclusion probabilities are exactly the counted shares.
    """
    layers, experts = counts.shape
    k = counts.experts_per_token
    rho_LE = np.minimum(counts.rho_LE, 1.0)
    rho_LE = rho_LE * (k / np.maximum(rho_LE.sum(1, keepdims=True), 1e-12))
    routes = np.empty((steps, layers, k), np.int16)
    rows = np.arange(layers)[:, None]
    for step in range(steps):
        order_LE = rng.random((layers, experts)).argsort(1)
        edges_LE = np.cumsum(rho_LE[rows, order_LE], axis=1)
        points_LK = rng.random((layers, 1)) + np.arange(k)
        places_LK = (edges_LE[:, None, :] <= points_LK[:, :, None]).sum(2).clip(max=experts - 1)
        routes[step] = order_LE[rows, places_LK]
    return RouteTrace(
        experts_NLK=routes,
        request_N=(np.arange(steps) // steps_per_request).astype(np.int32),
        experts=experts,
        model_hash=counts.model_hash,
        workload_hash=counts.workload_hash,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """How soon routes come back to an expert of their layer."""

    misses: NDArray[np.float64]
    """Misses of a step with least-recently-used caches of C = 0, 1, … E slots a layer."""
    quantiles: tuple[tuple[float, int | None], ...]
    """Share of the routes → reuse distance that they do not exceed; None: among first uses."""
    first_uses: float
    """Share of the routes whose expert was not used before."""


def reuse(trace: RouteTrace) -> Reuse:
    layers, experts = trace.shape
    found = distances(trace, range(layers), "layer")
    ordered = np.sort(found, axis=None)
    quantiles = []
    for share in (0.5, 0.75, 0.9, 0.95, 0.99):
        value = int(ordered[min(int(share * ordered.size), ordered.size - 1)])
        quantiles.append((share, None if value == NEVER else value))
    return Reuse(
        misses=miss_curve(found, experts),
        quantiles=tuple(quantiles),
        first_uses=float((found == NEVER).mean()),
    )


def outcomes(
    routes: Routes,
    sizes: Sizes,
    rooms: Sequence[Room],
    *,
    calibration: Calibration | None,
    policies: Sequence[str] = POLICIES,
) -> list[tuple[Room, Outcome]]:
    """Every policy with every room."""
    _, experts = routes.judged.shape
    k = routes.judged.experts_NLK.shape[2]
    made: list[tuple[Room, Outcome]] = []
    for room in rooms:
        budgets = sizes.budgets(room, experts=experts, experts_per_token=k)
        for spec in policies:
            if spec == "ostinato" and not sizes.borrowed_bytes:
                continue  # without borrowed memory it is the row before
            outcome = simulate(
                spec,
                routes.judged,
                budgets,
                counts=routes.development,
                calibration=calibration,
                borrowed_bytes=sizes.borrowed_bytes,
            )
            made.append((room, outcome))
    return made


def residency(routes: Routes, sizes: Sizes, room: Room, *, calibration: Calibration | None) -> Residency:
    """What the planner would keep."""
    return plan(
        [Gpu(layers=layers, pool_bytes=pool) for layers, pool in zip(sizes.gpus, room.pool_bytes, strict=True)],
        experts=routes.development.shape[1],
        expert_bytes=sizes.expert_bytes,
        counts=routes.development,
        model_hash=routes.development.model_hash,
        costs=calibration.costs() if calibration else None,
    )


def cold_per_token(counts: RouteCounts, resident_LE: NDArray[np.bool_]) -> float:
    """A prefill token's cold routes, all layers together."""
    return float(counts.prefill_shares_LE[~resident_LE].sum())


def threshold(costs: PathDifference, counts: RouteCounts, resident_LE: NDArray[np.bool_]) -> int | None:
    """Np as the cost model predicts; None: uploading never pays up to ``MOST_TOKENS``."""
    return prefill_cost.threshold(costs, counts.prefill_shares_LE, ~resident_LE, most=MOST_TOKENS)
