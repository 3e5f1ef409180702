"""The cost model gives the paper's numbers, and its propositions hold against brute force."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.ostinato.planner.cost import (
    DecodeCosts,
    expected_layers_ms,
    gap_bound_ms,
    increment,
    layers_ms,
    overlap_bound_from_q_ms,
    overlap_bound_ms,
    residency_ms,
    step_from_shares_ms,
    step_ms,
)
from engines.ostinato.planner.prefill_cost import PathDifference, distinct_cold, fit, switch, threshold
from engines.ostinato.planner.routes import cold_statistics

UNHURRIED = settings(deadline=None, max_examples=40)


# DeepSeek-V4-Flash on the paper's machine, as printed (section 3.2, appendix B). The GPU branch of each of its 43
# layers is not printed, only its range; δ = α − G is, between 0.0013 and 0.0056 ms, adding up to 0.152.
LAYERS, GAMMA0, ALPHA, BETA = 43, 0.120, 0.140, 0.184
DELTA_LEAST, DELTA_MOST, DELTA_SUM, Q_MEAN = 0.0013, 0.0056, 0.152, 0.589
UPLOAD_IDLE = 0.53


def paper(delta: float) -> DecodeCosts:
    gpu = np.full(LAYERS, ALPHA - delta)
    return DecodeCosts(gamma0=GAMMA0, alpha=ALPHA, beta=BETA, gpu=gpu)


def test_residual_bound_of_the_paper() -> None:
    q = np.full(LAYERS, Q_MEAN)
    assert gap_bound_ms(paper(DELTA_MOST), q) == pytest.approx(0.142, abs=5e-4)
    assert gap_bound_ms(paper(DELTA_SUM / LAYERS), np.ones(LAYERS)) == pytest.approx(DELTA_SUM)


def test_growth_from_4864_to_5702_slots_stays_within_the_papers_factor() -> None:
    # ΔF0 = 2.219 fixes the routes that stop being cold: 12.06 a step. How many layers stop having one is not printed;
    # ΔF = 2.239 needs Σ δΔq = 0.020, which lies within what proposition B.2 allows.
    fewer = 2.219 / BETA
    mu, grown = np.full(LAYERS, fewer / LAYERS), np.zeros(LAYERS)
    smallest = increment(paper(DELTA_LEAST), mu=mu, q=grown, grown_mu=grown, grown_q=grown)
    largest = increment(paper(DELTA_MOST), mu=mu, q=mu, grown_mu=grown, grown_q=grown)
    assert smallest.leading == pytest.approx(2.219)
    assert smallest.full <= 2.239 <= largest.full <= largest.most + 1e-12
    assert largest.most / largest.leading == pytest.approx(1.03, abs=5e-3)
    layers_less = 0.020 / (DELTA_SUM / LAYERS)
    q = np.full(LAYERS, layers_less / LAYERS)
    assert increment(paper(DELTA_SUM / LAYERS), mu=mu, q=q, grown_mu=grown, grown_q=grown).full == pytest.approx(
        2.239, abs=1e-9
    )


def test_overlap_bound_of_the_paper() -> None:
    # U = 5.615 ms was computed on 160 decode steps whose q is not printed: with the mean δ it follows from q̄ = 0.643.
    costs = paper(DELTA_SUM / LAYERS)
    assert overlap_bound_from_q_ms(costs, np.full(LAYERS, 0.643)) == pytest.approx(5.615, abs=1e-3)
    assert overlap_bound_from_q_ms(paper(DELTA_MOST), np.zeros(LAYERS)) < 5.615
    assert overlap_bound_from_q_ms(paper(DELTA_LEAST), np.ones(LAYERS)) > 5.615
    assert pytest.approx(4.877) == 38.415 - 33.538
    assert pytest.approx(0.869, abs=5e-4) == 4.877 / 5.615


def test_an_upload_pays_from_three_tokens_an_expert_on() -> None:
    assert 2 * BETA < UPLOAD_IDLE < 3 * BETA


def test_a_cold_layer_hides_the_gpu_branch_and_a_hot_one_the_cpu() -> None:
    costs = paper(0.0035)
    assert layers_ms(costs, np.zeros(LAYERS, int))[0] == pytest.approx(0.1365)
    assert layers_ms(costs, np.full(LAYERS, 2))[0] == pytest.approx(0.140 + 2 * 0.184)
    assert layers_ms(costs, np.full(LAYERS, 2), overlapped=False)[0] == pytest.approx(0.508 + 0.1365)


@st.composite
def costs(draw: st.DrawFn, layers: int, *, same_beta: bool = False, growing: bool = False) -> DecodeCosts:
    """Costs for which proposition B.1 holds; ``growing``: δ ≥ 0 too."""

    def per_layer(low: float, high: float) -> np.ndarray:
        return np.array(draw(st.lists(st.floats(low, high), min_size=layers, max_size=layers)))

    beta = np.full(layers, draw(st.floats(0.01, 1.0))) if same_beta else per_layer(0.01, 1.0)
    alpha = per_layer(0.2, 0.5)
    gamma0 = alpha * (draw(st.floats(0.1, 1.0)) if growing else draw(st.floats(0.1, 1.5)))
    gpu = alpha * draw(st.floats(0.1, 1.0)) if growing else (alpha + beta) * draw(st.floats(0.1, 1.0))
    return DecodeCosts(gamma0=gamma0, alpha=alpha, beta=beta, gpu=gpu)


def routes(layers: int, experts: int, k: int) -> st.SearchStrategy[np.ndarray]:
    """A trace [N, L, K] in which anything may depend on anything."""
    step = st.lists(st.permutations(range(experts)).map(lambda order: order[:k]), min_size=layers, max_size=layers)
    return st.lists(step, min_size=1, max_size=6).map(np.array)


def cold_of(trace: np.ndarray, resident: np.ndarray) -> np.ndarray:
    return (~resident[np.arange(trace.shape[1])[:, None], trace]).sum(2)


def subset(chosen: object, layers: int, experts: int) -> np.ndarray:
    resident = np.zeros(layers * experts, bool)
    resident[list(chosen)] = True  # type: ignore[call-overload]
    return resident.reshape(layers, experts)


@UNHURRIED
@given(costs=costs(3), cold=st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=8))
def test_expected_layer_time_needs_only_mean_and_share_of_cold_routes(costs: DecodeCosts, cold: list) -> None:
    observed = np.array(cold)
    statistics = cold_statistics(observed, 4)
    brute = layers_ms(costs, observed).mean(0)
    np.testing.assert_allclose(expected_layers_ms(costs, statistics.mu_L, statistics.q_L), brute, rtol=1e-9)
    assert step_from_shares_ms(costs, statistics.share_LR) == pytest.approx(brute.sum())
    assert step_ms(costs, statistics.mu_L, statistics.q_L) == pytest.approx(brute.sum())


@pytest.mark.parametrize(("beta", "gpu"), [(-0.1, 0.1), (0.1, 0.5)])
def test_costs_outside_the_proposition_are_refused(beta: float, gpu: float) -> None:
    costs = DecodeCosts(gamma0=0.1, alpha=0.2, beta=beta, gpu=gpu)
    with pytest.raises(ValueError, match="no closed form"):
        expected_layers_ms(costs, np.ones(1), np.ones(1))


@UNHURRIED
@given(data=st.data(), growing=st.booleans(), slots=st.integers(0, 8))
def test_most_frequent_experts_are_within_the_bound_of_the_best_set(
    data: st.DataObject, growing: bool, slots: int
) -> None:
    layers, experts = 2, 4
    trace = data.draw(routes(layers, experts, 2))
    chosen_costs = data.draw(costs(layers, same_beta=True, growing=growing))
    counts = np.zeros((layers, experts))
    np.add.at(counts, (np.arange(layers)[:, None], trace), 1)
    ranked = np.argsort(-counts.ravel(), kind="stable")[:slots]

    def value(resident: np.ndarray) -> tuple[float, float]:
        cold = cold_statistics(cold_of(trace, resident), 2)
        return residency_ms(chosen_costs, cold.mu_L, cold.q_L), gap_bound_ms(chosen_costs, cold.q_L)

    frequent, bound = value(subset(ranked, layers, experts))
    best = min(value(subset(some, layers, experts))[0] for some in combinations(range(layers * experts), slots))
    assert -1e-12 <= frequent - best <= bound + 1e-12


@UNHURRIED
@given(data=st.data(), smaller=st.sets(st.integers(0, 11)), more=st.sets(st.integers(0, 11)), growing=st.booleans())
def test_a_larger_set_saves_what_the_proposition_allows(
    data: st.DataObject, smaller: set, more: set, growing: bool
) -> None:
    layers, experts = 3, 4
    trace = data.draw(routes(layers, experts, 3))
    chosen_costs = data.draw(costs(layers, same_beta=True, growing=growing))
    before = cold_statistics(cold_of(trace, subset(smaller, layers, experts)), 3)
    after = cold_statistics(cold_of(trace, subset(smaller | more, layers, experts)), 3)
    assert np.all(before.q_L - after.q_L >= -1e-12)
    assert np.all(before.q_L - after.q_L <= before.mu_L - after.mu_L + 1e-12)
    gain = increment(chosen_costs, mu=before.mu_L, q=before.q_L, grown_mu=after.mu_L, grown_q=after.q_L)
    assert gain.least - 1e-9 <= gain.full <= gain.most + 1e-9
    if growing:  # the paper's case: δ ≥ 0
        assert gain.least == gain.leading


@UNHURRIED
@given(costs=costs(2), cold=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), min_size=1, max_size=6))
def test_overlap_hides_at_most_the_shorter_branch(costs: DecodeCosts, cold: list) -> None:
    observed = np.array(cold)
    saved = (layers_ms(costs, observed, overlapped=False) - layers_ms(costs, observed)).mean(0).sum()
    assert saved == pytest.approx(overlap_bound_ms(costs, observed))
    assert saved == pytest.approx(overlap_bound_from_q_ms(costs, (observed > 0).mean(0)))


@UNHURRIED
@given(
    period=st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=7),
    phi=st.tuples(st.floats(0.01, 5), st.floats(0.01, 2), st.floats(0.01, 5)),
)
def test_stationary_routes_switch_paths_once(period: list[set[int]], phi: tuple[float, float, float]) -> None:
    # A periodic sequence that starts anywhere with the same probability is stationary, and as dependent as can be.
    many = 60

    def distinct(n: int) -> float:
        starts = range(len(period))
        unions = [set().union(*(period[(s + i) % len(period)] for i in range(n))) for s in starts]
        return sum(map(len, unions)) / len(period)

    u = np.array([distinct(n) for n in range(many)])
    steps = np.diff(u)
    assert np.all(steps >= -1e-12)
    assert np.all(np.diff(steps) <= 1e-12)
    assert u[-1] <= 6
    difference = PathDifference(phi0=-phi[0], phi1=phi[1], phi2=phi[2]).at(np.arange(many, dtype=float), u)
    signs = difference >= 0
    assert not signs[0]
    assert sum(a != b for a, b in pairwise(signs)) <= 1
    at = switch(difference)
    assert at is None or np.all(difference[at + 1 :] > 0)


@UNHURRIED
@given(shares=st.lists(st.floats(0, 1), min_size=1, max_size=5), n=st.integers(0, 4))
def test_distinct_cold_experts_against_every_outcome(shares: list[float], n: int) -> None:
    brute = sum(1 - (1 - share) ** n for share in shares)
    found = distinct_cold(np.array([shares]), np.ones((1, len(shares)), bool), np.array([float(n)]))
    assert found[0] == pytest.approx(brute, abs=1e-12)


@UNHURRIED
@given(
    shares=st.lists(st.floats(0.001, 0.5), min_size=2, max_size=20),
    phi=st.tuples(st.floats(0.01, 5), st.floats(0.001, 1), st.floats(0.01, 5)),
)
def test_threshold_is_the_first_size_that_uploads(shares: list[float], phi: tuple[float, float, float]) -> None:
    costs = PathDifference(phi0=-phi[0], phi1=phi[1], phi2=phi[2])
    chosen, cold = np.array([shares]), np.ones((1, len(shares)), bool)
    n = np.arange(3000, dtype=float)
    brute = switch(costs.at(n, distinct_cold(chosen, cold, n)))
    assert threshold(costs, chosen, cold, most=2999) == brute
    assert threshold(costs, chosen, ~cold, most=2999) is None


def test_a_sweep_gives_its_constants_back() -> None:
    tokens = np.array([16.0, 64.0, 128.0, 256.0, 512.0, 1024.0])
    shares, cold = np.full((4, 100), 0.01), np.ones((4, 100), bool)
    distinct = distinct_cold(shares, cold, tokens)
    upload = 20.0 + 0.53 * distinct
    split = 10.0 + 0.4 * tokens
    found = fit(tokens, split, upload, distinct)
    assert found is not None
    assert (found.phi0, found.phi1, found.phi2) == pytest.approx((-10.0, 0.4, 0.53))
    assert fit(tokens[:2], split[:2], upload[:2], distinct[:2]) is None
    assert fit(tokens, upload, split, distinct) is None
