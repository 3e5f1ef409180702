"""Simulated policies miss what a hand count misses, and agree with a plain cache."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.ostinato.placement.policy import MemoryBudget
from engines.ostinato.placement.registry import POLICIES, policy
from engines.ostinato.planner.calibration import Calibration, LayerGroup
from engines.ostinato.planner.reuse import NEVER, distances, miss_curve
from engines.ostinato.planner.routes import RouteTrace
from engines.ostinato.planner.simulate import EVERY, best_borrowing, simulate, sweep
from engines.ostinato.planner.synthetic_routes import synthetic_routes

UNHURRIED = settings(deadline=None, max_examples=40)


def trace(routes: list, experts: int = 4, per_request: int = 1000) -> RouteTrace:
    array = np.array(routes, np.int16)
    return RouteTrace(
        experts_NLK=array,
        request_N=(np.arange(len(array)) // per_request).astype(np.int32),
        experts=experts,
        model_hash="m",
        workload_hash="w",
    )


def budget(recorded: RouteTrace, slots: int) -> MemoryBudget:
    layers, experts = recorded.shape
    return MemoryBudget(
        layers=range(layers),
        experts=experts,
        experts_per_token=recorded.experts_NLK.shape[2],
        expert_bytes=(1,) * layers,
        pool_bytes=slots,
    )


def calibration(layers: int, k: int) -> Calibration:
    cpu = (0.1, *(0.2 + 0.1 * r for r in range(1, k + 1)))
    group = LayerGroup(layers=tuple(range(layers)), cpu_ms=cpu, gpu_ms=0.15, upload_ms=0.5)
    return Calibration(groups=(group,), dense_step_ms=1.0, prefill=(), model_hash="m")


# Two layers of four experts, two a token.
HAND = trace([[[0, 1], [0, 1]], [[0, 2], [0, 1]], [[0, 1], [2, 3]]])


def test_distances_worked_by_hand() -> None:
    per_layer = distances(HAND, range(2), "layer")
    assert per_layer[:, 0].tolist() == [[NEVER, NEVER], [1, NEVER], [1, 2]]
    shared = distances(HAND, range(2), "gpu")
    # Step 1, layer 0: experts 0 and 1 of layer 0 were followed by two of layer 1.
    assert shared[1, 0].tolist() == [3, NEVER]
    # Step 1, layer 1: since its last use, expert 1 of its layer and 0 and 2 of layer 0, and layer 0's 1 not.
    assert shared[1, 1].tolist() == [3, 2]
    assert miss_curve(per_layer, 4).tolist() == pytest.approx([4, 11 / 3, 8 / 3, 7 / 3, 7 / 3])


@UNHURRIED
@given(st.integers(0, 2**32 - 1), st.integers(2, 14))
def test_distances_agree_with_a_cache_that_is_played_through(seed: int, slots: int) -> None:
    rng = np.random.default_rng(seed)
    routes = [[rng.permutation(5)[:2].tolist() for _ in range(3)] for _ in range(12)]
    recorded = trace(routes, experts=5)
    misses = 0
    cache: OrderedDict[tuple[int, int], None] = OrderedDict()
    for step in routes:
        for layer, chosen in enumerate(step):
            misses += sum((layer, expert) not in cache for expert in chosen)
            for expert in chosen:
                cache[layer, expert] = None
                cache.move_to_end((layer, expert))
            while len(cache) > slots:
                cache.popitem(last=False)
    assert (distances(recorded, range(3), "gpu") >= slots).sum() == misses
    assert miss_curve(distances(recorded, range(3), "gpu"), 15)[slots] * 12 == pytest.approx(misses)


def test_static_policies_worked_by_hand() -> None:
    layers = calibration(2, 2)
    kept = simulate("ostinato", HAND, [budget(HAND, 4)], counts=HAND.counts(), calibration=layers)
    # Resident: experts 0 and 1 of both layers. Cold: 2 of layer 0 once, 2 and 3 of layer 1 once.
    assert kept.coverage == pytest.approx(9 / 12)
    assert kept.cpu_routes == pytest.approx(1.0)
    # Two cold layers in three steps: one route 0.3, two routes 0.4; the other four take max(0.1, 0.15).
    assert kept.decode_step_ms == pytest.approx(1 + (0.3 + 0.4 + 4 * 0.15) / 3)
    turned = simulate("ostinato:overlapped=false", HAND, [budget(HAND, 4)], counts=HAND.counts(), calibration=layers)
    assert turned.decode_step_ms == pytest.approx(1 + (0.3 + 0.4 + 4 * 0.1 + 6 * 0.15) / 3)
    whole = simulate("layers", HAND, [budget(HAND, 4)], counts=None, calibration=layers)
    assert whole.coverage == pytest.approx(0.5)
    assert whole.decode_step_ms == pytest.approx(1 + 0.4 + 0.15)
    streamed = simulate("stream", HAND, [budget(HAND, 4)], counts=None, calibration=layers)
    assert (streamed.copies, streamed.cpu_routes) == (4, 0)
    assert streamed.decode_step_ms == pytest.approx(1 + 2 * 0.15 + 4 * 0.5)


def test_caches_worked_by_hand() -> None:
    shared = simulate("lru_cache", HAND, [budget(HAND, 4)], counts=None, calibration=calibration(2, 2))
    # Misses: all four of step 0, expert 2 of layer 0 in step 1, which pushes out 1 of layer 0 (then the oldest);
    # in step 2 that one, then 2 and 3 of layer 1.
    assert shared.copies == pytest.approx((4 + 1 + 3) / 3)
    assert shared.decode_step_ms == pytest.approx(1 + 2 * 0.15 + 0.5 * 8 / 3)
    paged = simulate("paging", HAND, [budget(HAND, 4)], counts=None)
    # Two slots a layer: layer 0 misses 0, 1, then 2, then 1; layer 1 misses 0, 1, then 2, 3.
    assert paged.copies == pytest.approx(8 / 3)
    assert paged.decode_step_ms is None


def test_borrowing_serves_what_the_cpu_kept_computing_and_ends_with_the_request() -> None:
    steps = [[[0, 1]]] * 10 + [[[0, 3]]] * (3 * EVERY)
    recorded = trace(steps, per_request=len(steps))
    counts = trace([[[0, 1]]] * 10).counts()
    alone = simulate("ostinato:borrow=false", recorded, [budget(recorded, 2)], counts=counts)
    lent = simulate("ostinato", recorded, [budget(recorded, 2)], counts=counts, borrowed_bytes=1)
    assert alone.cpu_routes * len(steps) == pytest.approx(3 * EVERY)
    # Expert 3 is computed by the CPU until the first look at the counts after it appeared.
    assert lent.cpu_routes * len(steps) == pytest.approx(2 * EVERY - 10)
    assert lent.background_copies * len(steps) == pytest.approx(1)
    again = trace(steps, per_request=10 + EVERY)
    ended = simulate("ostinato", again, [budget(again, 2)], counts=counts, borrowed_bytes=1)
    assert ended.cpu_routes > lent.cpu_routes


def test_every_policy_runs_on_two_gpus_and_more_memory_never_misses_more() -> None:
    drawn = synthetic_routes(
        layers=4,
        experts=16,
        experts_per_token=3,
        steps=160,
        steps_per_request=40,
        rng=np.random.default_rng(0),
    )
    counts = drawn.requests(0, 2).counts()
    held_out = drawn.requests(2, 4)
    measured = calibration(4, 3)
    for spec in POLICIES:
        small, large, all_of_it = sweep(
            [spec],
            held_out,
            [slots << 20 for slots in (16, 40, 64)],
            expert_bytes=[1 << 20] * 4,
            counts=counts,
            calibration=measured,
        )
        assert small.coverage <= large.coverage <= all_of_it.coverage, spec
        assert all_of_it.cpu_routes == 0 or spec == "decay_cache", spec
    halves = [
        MemoryBudget(layers=part, experts=16, experts_per_token=3, expert_bytes=(1 << 20,) * 4, pool_bytes=20 << 20)
        for part in (range(2), range(2, 4))
    ]
    for spec in POLICIES:
        made = simulate(spec, held_out, halves, counts=counts, calibration=measured)
        assert made.slots == 40
        assert 0 < made.coverage < 1, spec


def test_borrowing_constants_are_chosen_on_a_recording() -> None:
    drawn = synthetic_routes(
        layers=2,
        experts=16,
        experts_per_token=2,
        steps=200,
        steps_per_request=50,
        rng=np.random.default_rng(2),
        sameness=0.8,
    )
    room = budget(drawn, 8)
    chosen = policy("ostinato")
    resident = chosen.residents(room, drawn.counts())
    lent, routes = best_borrowing(drawn, resident, budget=room, borrowed_bytes=4, policy=chosen)
    assert routes < drawn.cold(resident).mu_L.sum()
    assert not lent.present_LE.any()


def test_a_spread_of_zero_routes_evenly() -> None:
    even, skewed = (
        synthetic_routes(
            layers=2,
            experts=32,
            experts_per_token=4,
            steps=1500,
            steps_per_request=1500,
            rng=np.random.default_rng(3),
            spread=spread,
            sameness=0.0,
        ).counts()
        for spread in (0.0, 0.45)
    )
    top = np.sort(even.rho_LE, axis=1)[:, -14:].sum() / even.rho_LE.sum()
    assert top < 0.5
    assert np.sort(skewed.rho_LE, axis=1)[:, -14:].sum() / skewed.rho_LE.sum() > 0.65
