"""The planner covers most routes, fills two slot sizes best, and says when it knows nothing."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.ostinato.errors import SetupError
from engines.ostinato.planner.plan import GIB, Gpu, capacity_bytes, most_covering, plan
from engines.ostinato.planner.routes import RouteCounts
from engines.ostinato.planner.synthetic_routes import synthetic_routes

UNHURRIED = settings(deadline=None, max_examples=40)


def counts(decode: np.ndarray, steps: int = 10) -> RouteCounts:
    return RouteCounts(
        decode_LE=decode,
        prefill_LE=np.zeros_like(decode),
        decode_steps=steps,
        prefill_tokens=0,
        experts_per_token=2,
        model_hash="m",
        workload_hash="w",
    )


@UNHURRIED
@given(st.integers(0, 2**32 - 1), st.integers(0, 40))
def test_no_random_set_of_the_same_size_covers_more(seed: int, slots: int) -> None:
    rng = np.random.default_rng(seed)
    recorded = counts(rng.integers(0, 100, (5, 8)))
    made = plan(
        [Gpu(layers=range(5), pool_bytes=slots)], experts=8, expert_bytes=[1] * 5, counts=recorded, model_hash="m"
    )
    assert made.resident_LE.sum() == slots
    other = np.zeros(40, bool)
    other[rng.permutation(40)[:slots]] = True
    assert made.coverage is not None
    assert made.coverage >= recorded.coverage(other.reshape(5, 8)) - 1e-12


@UNHURRIED
@given(
    st.lists(st.integers(0, 9), min_size=6, max_size=6),
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    st.integers(0, 20),
)
def test_split_between_slot_sizes_is_the_best(routed: list[int], sizes: tuple[int, int, int], room: int) -> None:
    rho = np.array(routed, float).reshape(3, 2)
    chosen = most_covering(rho, range(3), np.array(sizes), room)
    everyone = [(layer, expert) for layer in range(3) for expert in range(2)]
    best = max(
        sum(rho[e] for e in some)
        for n in range(7)
        for some in combinations(everyone, n)
        if sum(sizes[layer] for layer, _ in some) <= room
    )
    assert sum(sizes[layer] for layer, _ in chosen) <= room
    assert sum(rho[e] for e in chosen) == best


def test_each_gpu_ranks_its_own_layers_together() -> None:
    recorded = counts(np.array([[90, 80, 1, 0], [70, 60, 50, 0], [9, 8, 7, 6], [5, 4, 3, 2]]))
    made = plan(
        [Gpu(layers=range(2), pool_bytes=4), Gpu(layers=range(2, 4), pool_bytes=4)],
        experts=4,
        expert_bytes=[1] * 4,
        counts=recorded,
        model_hash="m",
    )
    assert made.pools[0].resident == ((0, 0), (0, 1), (1, 0), (1, 1))
    assert made.pools[1].resident == ((2, 0), (2, 1), (2, 2), (2, 3))


def test_one_more_gib_adds_the_next_in_rank() -> None:
    recorded = counts(np.array([[9, 8, 1], [7, 6, 5]]))
    made = plan(
        [Gpu(layers=range(2), pool_bytes=2 * GIB)],
        experts=3,
        expert_bytes=[GIB // 2] * 2,
        counts=recorded,
        model_hash="m",
    )
    assert made.pools[0].resident == ((0, 0), (0, 1), (1, 0), (1, 1))
    assert made.pools[0].reserve == ((1, 2), (0, 2))


def test_without_a_recording_layers_hold_equally_many() -> None:
    made = plan([Gpu(layers=range(3), pool_bytes=7)], experts=4, expert_bytes=[1] * 3, counts=None, model_hash="m")
    assert made.source == "uniform"
    assert made.coverage is None
    assert made.resident_LE.sum(1).tolist() == [3, 2, 2]


def test_what_does_not_fit_together_is_refused() -> None:
    recorded = counts(np.ones((2, 2), np.int64))
    gpus = [Gpu(layers=range(2), pool_bytes=1)]
    with pytest.raises(SetupError, match="record them with this model"):
        plan(gpus, experts=2, expert_bytes=[1, 1], counts=recorded, model_hash="other")
    with pytest.raises(SetupError, match="cover the model once"):
        plan(gpus, experts=2, expert_bytes=[1, 1, 1], counts=None, model_hash="m")
    rest = {"dense": 1, "buffers": 1, "staging": 1, "kv_cache": 1, "zero_slots": 1}
    assert capacity_bytes(100, **rest, margin=5) == 90
    with pytest.raises(SetupError, match="raise --vram-budget or lower --context"):
        capacity_bytes(9, **rest, margin=5)


def test_skewed_routes_of_held_out_sessions_are_covered_by_43_percent_of_the_experts() -> None:
    trace = synthetic_routes(
        layers=24,
        experts=128,
        experts_per_token=8,
        steps=2400,
        steps_per_request=120,
        rng=np.random.default_rng(1),
    )
    development, held_out = trace.requests(0, 10), trace.requests(10, 20)
    slots = int(0.43 * 24 * 128)
    made = plan(
        [Gpu(layers=range(24), pool_bytes=slots)],
        experts=128,
        expert_bytes=[1] * 24,
        counts=development.counts(),
        model_hash="synthetic",
    )
    coverage = held_out.counts().coverage(made.resident_LE)
    print(f"{slots} of 3072 experts cover {coverage:.1%} of held-out routes ({made.coverage:.1%} of development's)")
    assert coverage >= 0.80
