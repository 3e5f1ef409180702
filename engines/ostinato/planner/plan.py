"""Fills each GPU's slots with the experts that sessions route to most (Ostinato, sections 3.1 and 3.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.errors import SetupError
from engines.ostinato.planner.cost import DecodeCosts, gap_bound_ms, step_from_shares_ms, step_ms
from engines.ostinato.planner.residency import Expert, Pool, Predicted, Residency, mask
from engines.ostinato.planner.routes import ColdStatistics, RouteCounts

# Shapes: L = MoE layers, E = experts.

GIB = 1 << 30
MARGIN_BYTES = 512 << 20
"""What a GPU keeps free at its peak: for the driver and the captured step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU's part of the plan."""

    layers: range
    """Its MoE layers."""
    pool_bytes: int
    """Room for resident experts, from ``capacity_bytes`` or from what the engine found free."""


def capacity_bytes(
    budget: int,
    *,
    dense: int,
    buffers: int,
    staging: int,
    kv_cache: int,
    zero_slots: int,
    margin: int = MARGIN_BYTES,
) -> int:
    """What is left for resident experts when all else has its room (the capacity test), in bytes.

    Args:
        budget: what the engine may use of the GPU.
        dense: weights that every token uses.
        buffers: of the largest forward pass.
        staging: where uploaded experts land.
        kv_cache: of the longest development request.
        zero_slots: one all-zero expert for each position of a token's routes.

    Raises:
        SetupError: the rest alone is too large.
    """
    rest = dense + buffers + staging + kv_cache + zero_slots + margin
    if rest > budget:
        raise SetupError(
            f"a GPU needs {rest / GIB:.2f} GiB before any expert (weights {dense / GIB:.2f}, KV cache "
            f"{kv_cache / GIB:.2f}, buffers {(buffers + staging + zero_slots) / GIB:.2f}, margin {margin / GIB:.2f}) "
            f"but may use {budget / GIB:.2f}; raise --vram-budget or lower --context"
        )
    return budget - rest


def plan(
    gpus: Sequence[Gpu],
    *,
    experts: int,
    expert_bytes: Sequence[int],
    counts: RouteCounts | None,
    model_hash: str,
    costs: DecodeCosts | None = None,
) -> Residency:
    """Choose the residents of every GPU.

    Args:
        expert_bytes: one expert's size in each layer, ``[L]``.
        counts: recorded on development sessions; None gives every layer equally many.
        costs: adds the predicted decode step.

    Raises:
        SetupError: the routes come from another model.
    """
    sizes = np.asarray(expert_bytes, np.int64)
    if [layer for gpu in gpus for layer in gpu.layers] != list(range(len(sizes))):
        raise SetupError("the GPUs' layers must follow each other and cover the model once; check --layers")
    if counts is not None and (counts.model_hash != model_hash or counts.shape != (len(sizes), experts)):
        raise SetupError(
            f"the routes were recorded with model {counts.model_hash} ({counts.shape[0]} layers of {counts.shape[1]} "
            f"experts), the plan is for {model_hash} ({len(sizes)} of {experts}); record them with this model"
        )
    if counts is None:
        pools = [_uniform(gpu, experts, sizes) for gpu in gpus]
    else:
        pools = [_ranked(gpu, counts.ranking_LE, sizes) for gpu in gpus]
    if counts is None:
        return Residency(
            pools=tuple(pools),
            experts=experts,
            source="uniform",
            coverage=None,
            model_hash=model_hash,
            workload_hash=None,
        )
    resident_LE = mask(len(sizes), experts, [pool.resident for pool in pools])
    return Residency(
        pools=tuple(pools),
        experts=experts,
        source="recorded",
        coverage=counts.coverage(resident_LE),
        model_hash=model_hash,
        workload_hash=counts.workload_hash,
        predicted=predict(counts, resident_LE, costs),
    )


def predict(counts: RouteCounts, resident_LE: NDArray[np.bool_], costs: DecodeCosts | None) -> Predicted:
    """What the cost model says of a decode step under a residency set; no times without costs."""
    return predict_from(counts.cold(resident_LE), costs)


def predict_from(cold: ColdStatistics, costs: DecodeCosts | None) -> Predicted:
    """The same from the cold routes of a step. Where proposition B.1 does not hold, nothing bounds the gap."""
    routes = float(cold.mu_L.sum())
    if costs is None:
        return Predicted(cold_routes_per_step=routes, decode_step_ms=None, gap_bound_ms=None)
    closed = costs.check() is None
    return Predicted(
        cold_routes_per_step=routes,
        decode_step_ms=step_ms(costs, cold.mu_L, cold.q_L) if closed else step_from_shares_ms(costs, cold.share_LR),
        gap_bound_ms=gap_bound_ms(costs, cold.q_L) if closed else None,
    )


def most_covering(rho_LE: NDArray[np.float64], layers: range, sizes: NDArray[np.int64], room: int) -> list[Expert]:
    """The set of experts that fits ``room`` bytes and gets most routes, the most routed first.

    Within one byte size the most routed are best. Between sizes every split of the memory is tried.
    """
    mine = np.array(layers)
    classes = np.unique(sizes[mine])[::-1] if len(mine) else np.array([], np.int64)
    ranked: list[list[Expert]] = []
    gains: list[NDArray[np.float64]] = []
    for size in classes:
        of_size = mine[sizes[mine] == size]
        routes = rho_LE[of_size].ravel()
        order = np.argsort(-routes, kind="stable")
        ranked.append([(int(of_size[i // rho_LE.shape[1]]), int(i % rho_LE.shape[1])) for i in order])
        gains.append(np.concatenate([[0.0], np.cumsum(routes[order])]))
    taken = _best_split(gains, [int(size) for size in classes], room)[1]
    chosen = [expert for ranking, count in zip(ranked, taken, strict=True) for expert in ranking[:count]]
    return sorted(chosen, key=lambda expert: (-rho_LE[expert], expert))


def _best_split(
    gains: Sequence[NDArray[np.float64]], sizes: Sequence[int], room: int
) -> tuple[float, tuple[int, ...]]:
    """How many of each size to take; ``gains[c][n]`` is what the n best of class c bring. Enumerates all splits."""
    if not sizes:
        return 0.0, ()
    most = min(max(room, 0) // sizes[0], len(gains[0]) - 1)
    if len(sizes) == 1:
        return float(gains[0][most]), (most,)
    if len(sizes) == 2:
        first = np.arange(most + 1)
        second = np.minimum((room - first * sizes[0]) // sizes[1], len(gains[1]) - 1)
        total = gains[0][first] + gains[1][second]
        best = int(np.argmax(total))
        return float(total[best]), (best, int(second[best]))
    options: list[Any] = []
    for count in range(most + 1):
        gain, others = _best_split(gains[1:], sizes[1:], room - count * sizes[0])
        options.append((float(gains[0][count]) + gain, (count, *others)))
    return max(options)  # type: ignore[no-any-return]


def _ranked(gpu: Gpu, rho_LE: NDArray[np.float64], sizes: NDArray[np.int64]) -> Pool:
    resident = most_covering(rho_LE, gpu.layers, sizes, gpu.pool_bytes)
    # The next in rank, not a new split: the larger set holds the smaller one, as proposition B.2 asks.
    held = rho_LE.copy()
    room = gpu.pool_bytes + GIB - sum(int(sizes[layer]) for layer, _ in resident)
    held[tuple(np.array(resident).T) if resident else ([], [])] = -1.0
    candidates = most_covering(np.maximum(held, 0.0), gpu.layers, sizes, room)
    reserve = tuple(expert for expert in candidates if held[expert] >= 0)
    return Pool(layers=gpu.layers, pool_bytes=gpu.pool_bytes, resident=tuple(resident), reserve=reserve)


def _uniform(gpu: Gpu, experts: int, sizes: NDArray[np.int64]) -> Pool:
    """Round robin by expert number: layers hold equally many, give or take one."""
    return Pool(
        layers=gpu.layers,
        pool_bytes=gpu.pool_bytes,
        resident=tuple(round_robin(gpu.layers, experts, sizes, gpu.pool_bytes)),
    )


def round_robin(layers: range, experts: int, sizes: NDArray[np.int64], room: int) -> list[Expert]:
    """Expert 0 of every layer, then expert 1, until the next one does not fit."""
    chosen: list[Expert] = []
    for expert in range(experts):
        for layer in layers:
            room -= int(sizes[layer])
            if room < 0:
                return chosen
            chosen.append((layer, expert))
    return chosen
