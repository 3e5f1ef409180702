"""What each placement policy would do with a recorded trace: misses, coverage, the decode step the model predicts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.placement.borrowed import Borrowed
from engines.ostinato.placement.policy import MemoryBudget, Policy
from engines.ostinato.placement.registry import policy as build
from engines.ostinato.planner.calibration import Calibration
from engines.ostinato.planner.cost import layers_ms
from engines.ostinato.planner.reuse import distances
from engines.ostinato.planner.routes import RouteCounts, RouteTrace

# Shapes: N = decode steps, L = MoE layers, E = experts, K = experts per token.

EVERY = 8
"""Decode steps between two looks at the counts; copies started at one are there at the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One policy on one trace with one budget."""

    policy: str
    slots: int
    """Experts that fit, all GPUs together."""
    coverage: float
    """Share of the routes that found their expert on the GPU."""
    cpu_routes: float
    """Routes that the CPU computes, per step."""
    copies: float
    """Experts copied while the step waits, per step."""
    background_copies: float
    """Experts copied beside the step, per step."""
    decode_step_ms: float | None
    """As the cost model predicts; None without a calibration."""


def simulate(
    spec: str,
    trace: RouteTrace,
    budgets: Sequence[MemoryBudget],
    *,
    counts: RouteCounts | None,
    calibration: Calibration | None = None,
    borrowed_bytes: int = 0,
) -> Outcome:
    """Run one policy over a trace's decode steps. Nothing is learnt from prefill.

    Args:
        spec: as in ``--placement``.
        budgets: one a GPU.
        counts: what the policy may know beforehand (development sessions).
        borrowed_bytes: what each GPU lends to decode, for policies that borrow.
    """
    layers, experts = trace.shape
    steps, _, k = trace.experts_NLK.shape
    cold_NL = np.zeros((steps, layers), np.int16)
    copied_NL = np.zeros((steps, layers), np.int16)
    background = 0
    for budget in budgets:
        policy = build(spec, calibration=calibration)
        mine = slice(budget.layers.start, budget.layers.stop)
        resident_LE = policy.residents(budget, counts)
        if policy.miss == "fetch":
            assert policy.lru_scope is not None
            slots = budget.slots if policy.lru_scope == "gpu" else budget.slots // max(len(budget.layers), 1)
            copied_NL[:, mine] = (distances(trace, budget.layers, policy.lru_scope) >= slots).sum(2)
        elif policy.miss == "stream":
            cold_NL[:, mine] = trace.cold_NL(resident_LE)[:, mine]
            copied_NL[:, mine] = (experts - resident_LE.sum(1))[mine]
        elif policy.counts_hits or (policy.borrow and borrowed_bytes):
            cold, background_here = _moving(policy, trace, budget, resident_LE, borrowed_bytes)
            cold_NL[:, mine], background = cold[:, mine], background + background_here
        else:
            cold_NL[:, mine] = trace.cold_NL(resident_LE)[:, mine]
            fetched = sorted(_fetched(policy, calibration, cold_NL, budget))
            copied_NL[:, fetched], cold_NL[:, fetched] = cold_NL[:, fetched], 0
    streamed = policy.miss == "stream"
    missed = cold_NL if streamed else cold_NL + copied_NL
    return Outcome(
        policy=spec,
        slots=sum(budget.slots for budget in budgets),
        coverage=1 - float(missed.sum(dtype=np.int64)) / max(steps * layers * k, 1),
        cpu_routes=0.0 if streamed else float(cold_NL.sum(dtype=np.int64)) / max(steps, 1),
        copies=float(copied_NL.sum(dtype=np.int64)) / max(steps, 1),
        background_copies=background / max(steps, 1),
        decode_step_ms=_step_ms(policy, cold_NL, copied_NL, calibration) if calibration else None,
    )


def sweep(
    specs: Sequence[str],
    trace: RouteTrace,
    pool_bytes: Sequence[int],
    *,
    expert_bytes: Sequence[int],
    counts: RouteCounts | None,
    calibration: Calibration | None = None,
) -> list[Outcome]:
    """Every policy with every budget on one GPU."""
    layers, experts = trace.shape
    return [
        simulate(
            spec,
            trace,
            [
                MemoryBudget(
                    layers=range(layers),
                    experts=experts,
                    experts_per_token=trace.experts_NLK.shape[2],
                    expert_bytes=tuple(expert_bytes),
                    pool_bytes=room,
                )
            ],
            counts=counts,
            calibration=calibration,
        )
        for room in pool_bytes
        for spec in specs
    ]


def _step_ms(
    policy: Policy, cold_NL: NDArray[np.int16], copied_NL: NDArray[np.int16], calibration: Calibration
) -> float:
    """Copies for the step at hand delay it (the paper's rule 2); the CPU runs beside the GPU."""
    costs = calibration.costs()
    waiting = copied_NL.mean(0) * calibration.upload_ms_L
    on_cpu = cold_NL if policy.miss == "cpu" else np.zeros_like(cold_NL)
    computing = layers_ms(costs, on_cpu, overlapped=policy.overlapped)
    if policy.miss != "cpu":
        computing = np.broadcast_to(costs.gpu, cold_NL.shape)
    return costs.dense + float((computing.mean(0) + waiting).sum())


def _fetched(
    policy: Policy, calibration: Calibration | None, cold_NL: NDArray[np.int16], budget: MemoryBudget
) -> frozenset[int]:
    """Layers promoted under the calibrated times: an undisturbed machine needs one schedule."""
    if calibration is None:
        return frozenset()
    k = np.full(cold_NL.shape[1], budget.experts_per_token)
    layers = layers_ms(calibration.costs(), np.where(cold_NL.any(0), k, 0))
    return policy.fetched_layers(list(layers), 0.0)


def _blocks(request_N: NDArray[np.int32]) -> Iterator[tuple[int, int, bool]]:
    """Runs of up to ``EVERY`` steps of one request: first step, after the last, whether the request begins there."""
    bounds = np.flatnonzero(np.diff(request_N)) + 1
    for start, stop in zip([0, *bounds], [*bounds, len(request_N)], strict=True):
        for low in range(start, stop, EVERY):
            yield int(low), int(min(low + EVERY, stop)), bool(low == start)


def _moving(
    policy: Policy,
    trace: RouteTrace,
    budget: MemoryBudget,
    resident_LE: NDArray[np.bool_],
    borrowed_bytes: int,
) -> tuple[NDArray[np.int16], int]:
    """Cold routes ``[N, L]`` and copies, where residents change or memory is borrowed while decoding."""
    borrowed = (
        Borrowed(layers=budget.layers, sizes=budget.sizes, experts=budget.experts, room=borrowed_bytes)
        if policy.borrow and borrowed_bytes
        else None
    )
    return replay(policy, trace, resident_LE.copy(), borrowed)


def replay(
    policy: Policy, trace: RouteTrace, resident_LE: NDArray[np.bool_], borrowed: Borrowed | None
) -> tuple[NDArray[np.int16], int]:
    """Step through a trace, ``EVERY`` steps at a time; see ``_moving``. Changes ``resident_LE`` and ``borrowed``."""
    layers, experts = trace.shape
    cold_NL = np.empty(trace.experts_NLK.shape[:2], np.int16)
    offset = np.arange(layers, dtype=np.int64)[:, None]
    copies = 0
    for start, stop, first in _blocks(trace.request_N):
        if borrowed is not None and first:
            borrowed.clear()
        held = resident_LE if borrowed is None else resident_LE | borrowed.present_LE
        block = trace.experts_NLK[start:stop]
        cold_NL[start:stop] = (~held[offset, block]).sum(2)
        flat = (block + offset * experts).ravel()
        uses_LE = np.bincount(flat, minlength=layers * experts).reshape(layers, experts)
        cpu_uses_LE = np.where(held, 0, uses_LE)
        seen_LE = uses_LE if policy.counts_hits else cpu_uses_LE
        for swap in policy.after_step(seen_LE, resident_LE, steps=stop - start):
            resident_LE[swap.layer, swap.expert] = True
            if swap.out is not None:
                resident_LE[swap.out] = False
            copies += 1
        if borrowed is not None:
            for swap in borrowed.after_step(uses_LE, resident_LE, steps=stop - start):
                borrowed.joined(swap)
                copies += 1
    return cold_NL, copies


def best_borrowing(
    trace: RouteTrace,
    resident_LE: NDArray[np.bool_],
    *,
    budget: MemoryBudget,
    borrowed_bytes: int,
    policy: Policy,
) -> tuple[Borrowed, float]:
    """The constants of borrowed memory that leave the CPU fewest routes of a development trace; those, per step."""
    best: tuple[float, Borrowed] | None = None
    for half_life in (8.0, 32.0, 128.0):
        for threshold in (1.5, 3.0):
            for margin in (1.25, 2.0):
                borrowed = Borrowed(
                    layers=budget.layers,
                    sizes=budget.sizes,
                    experts=budget.experts,
                    room=borrowed_bytes,
                    half_life=half_life,
                    threshold=threshold,
                    margin=margin,
                )
                cold, _ = replay(policy, trace, resident_LE.copy(), borrowed)
                mine = cold[:, budget.layers.start : budget.layers.stop]
                routes = float(mine.sum(dtype=np.int64)) / max(len(cold), 1)
                if best is None or routes < best[0]:
                    best = (routes, borrowed)
    assert best is not None
    best[1].clear()
    return best[1], best[0]
