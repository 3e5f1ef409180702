"""Statistics: worked by hand, properties, scipy as the oracle, coverage of the intervals by simulation."""

from itertools import product

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from analysis import stats

A = np.array([10.0, 20.0, 30.0, 40.0])
B = np.array([8.0, 20.0, 21.0, 31.0])  # 80 of 100 s
seconds = st.floats(0.1, 1000.0)
times = st.integers(8, 20).flatmap(lambda n: st.tuples(*(arrays(np.float64, n, elements=seconds) for _ in range(2))))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_the_saved_share_is_a_ratio_of_sums() -> None:
    assert stats.saved_share(A, B) == pytest.approx(0.20)


def test_the_linearised_error_worked_by_hand() -> None:
    # r = 0.8, so d = B - r A = (0, 4, -3, -1), and sqrt(4 / 3 * 26) / 100
    assert stats.saved_share_error(A, B) == pytest.approx(np.sqrt(4 / 3 * 26) / 100)


def test_points_beside_the_headline_worked_by_hand() -> None:
    assert stats.sessions_won(A, B) == 3  # a tie is not won
    assert stats.median_saving(A, B) == pytest.approx((0.2 + 0.225) / 2)
    assert stats.effective_sessions(A) == pytest.approx(100**2 / 3000)
    assert stats.effective_sessions(np.ones(7)) == pytest.approx(7)
    shares = [1 - 72 / 90, 1 - 60 / 80, 1 - 59 / 70, 1 - 49 / 60]
    assert stats.leave_one_out(A, B) == pytest.approx((min(shares), max(shares)))
    assert stats.leave_one_out(A[:1], B[:1]) is None


def test_a_resample_draws_as_many_sessions_as_there_are() -> None:
    counts_RS = stats.resample(13, rng(), resamples=4000)
    assert counts_RS.shape == (4000, 13)
    assert (counts_RS.sum(axis=1) == 13).all()
    assert counts_RS.mean(axis=0) == pytest.approx(np.ones(13), abs=0.08)


def test_bootstrap_t_agrees_with_a_plain_loop() -> None:
    a, b = rng(1).lognormal(2, 0.5, 12), rng(2).lognormal(1.8, 0.5, 12)
    counts_RS = stats.resample(12, rng(3), resamples=500)
    saved, error, t, shares = stats.saved_share(a, b), stats.saved_share_error(a, b), [], []
    for counts_S in counts_RS:
        drawn = np.repeat(np.arange(12), counts_S)
        shares.append(stats.saved_share(a[drawn], b[drawn]))
        t.append((shares[-1] - saved) / stats.saved_share_error(a[drawn], b[drawn]))
    low, high = saved - np.quantile(t, [0.975, 0.025]) * error
    studentised, percentile = stats.saved_share_intervals(a, b, counts_RS)
    assert (studentised.low, studentised.high) == pytest.approx((low, high))
    assert (percentile.low, percentile.high) == pytest.approx(tuple(np.quantile(shares, [0.025, 0.975])))


def test_the_percentile_interval_is_that_of_scipy() -> None:
    a, b = rng(1).lognormal(3, 0.6, 13), rng(2).lognormal(2.5, 0.6, 13)
    ours = stats.saved_share_intervals(a, b, stats.resample(13, rng(3), resamples=40_000))[1]
    theirs = scipy.stats.bootstrap(
        (a, b), lambda x, y, axis: 1 - y.sum(axis=axis) / x.sum(axis=axis),
        paired=True, method="percentile", n_resamples=40_000, rng=rng(4),
    ).confidence_interval  # fmt: skip
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs), abs=0.03 * (theirs.high - theirs.low))


def test_the_interval_of_a_median_is_that_of_scipy_when_a_session_is_one_turn() -> None:
    ttft_s = rng(5).lognormal(0, 0.7, 41)
    ours = stats.percentile_interval(
        stats.resampled_medians(ttft_s, np.arange(41), stats.resample(41, rng(6), resamples=20_000))
    )
    theirs = scipy.stats.bootstrap(
        (ttft_s,), np.median, method="percentile", n_resamples=20_000, rng=rng(7)
    ).confidence_interval
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs), abs=0.05 * (theirs.high - theirs.low))


@given(times=times, scale=st.floats(0.01, 100))
@settings(max_examples=40, deadline=None)
def test_intervals_hold_whatever_the_unit_and_the_order(
    times: tuple[stats.Floats, stats.Floats], scale: float
) -> None:
    a, b = times
    counts_RS = stats.resample(len(a), rng(), resamples=400)
    first = stats.saved_share_intervals(a, b, counts_RS)
    order = rng(1).permutation(len(a))
    again = stats.saved_share_intervals(a[order] * scale, b[order] * scale, counts_RS[:, order])
    for one, other in zip(first, again, strict=True):
        assert (one.low, one.high) == pytest.approx((other.low, other.high), rel=1e-6, abs=1e-9)
        assert one.low <= one.high <= 1


@given(times=times)
@settings(max_examples=40, deadline=None)
def test_the_saved_share_lies_in_its_leave_one_out_range(times: tuple[stats.Floats, stats.Floats]) -> None:
    low, high = stats.leave_one_out(*times) or (0, 0)
    assert low - 1e-9 <= stats.saved_share(*times) <= high + 1e-9


def test_an_effect_that_is_the_same_in_every_session_is_its_own_interval() -> None:
    studentised, percentile = stats.saved_share_intervals(A, 0.7 * A, stats.resample(4, rng()))
    assert (studentised.low, studentised.high, percentile.low) == pytest.approx((0.3, 0.3, 0.3))


def test_sign_flips_are_all_tried_for_few_sessions() -> None:
    difference = A - B
    sums = [abs(np.dot(signs, difference)) for signs in product((-1, 1), repeat=4)]
    expected = np.mean([total >= abs(difference.sum()) for total in sums])
    assert stats.sign_flip_p(A, B, rng()) == expected == 0.25
    assert stats.sign_flip_p(np.full(10, 2.0), np.full(10, 1.0), rng()) == 2 / 2**10


def test_sign_flips_are_sampled_for_many_sessions_and_never_give_zero() -> None:
    a = rng(1).lognormal(3, 0.3, 40)
    assert 0 < stats.sign_flip_p(a, 0.5 * a, rng()) < 0.001
    noise = a * np.exp(rng(2).normal(0, 0.05, 40))
    oracle = scipy.stats.permutation_test(
        (a, noise), lambda x, y, axis: (x - y).sum(axis=axis),
        permutation_type="samples", n_resamples=20_000, rng=rng(3),
    )  # fmt: skip
    assert stats.sign_flip_p(a, noise, rng()) == pytest.approx(oracle.pvalue, abs=0.02)


values = st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 5)), min_size=1, max_size=40)


@given(turns=values)
@settings(max_examples=60, deadline=None)
def test_resampled_medians_are_medians_of_the_turns_drawn(turns: list[tuple[float, int]]) -> None:
    value_N, session_N = np.array([v for v, _ in turns]), np.array([s for _, s in turns])
    counts_RS = stats.resample(6, rng(), resamples=30)
    medians_R = stats.resampled_medians(value_N, session_N, counts_RS, chunk=7)
    for counts_S, median in zip(counts_RS, medians_R, strict=True):
        drawn = np.repeat(value_N, counts_S[session_N])
        assert (np.isnan(median) and not len(drawn)) or median == np.median(drawn)


def test_a_median_of_few_sessions_has_no_interval() -> None:
    many_turns = rng().lognormal(0, 1, 700)
    counts_RS = stats.resample(8, rng(), resamples=500)
    few = stats.cluster_median(many_turns, np.arange(700) % 7, counts_RS)
    enough = stats.cluster_median(many_turns, np.arange(700) % 8, counts_RS)
    assert few is not None
    assert few.interval is None
    assert (few.value, few.turns, few.sessions) == (np.median(many_turns), 700, 7)
    assert enough is not None
    assert enough.interval is not None
    assert enough.interval.low < enough.value < enough.interval.high
    assert stats.cluster_median(np.array([]), np.array([], dtype=np.int64), counts_RS) is None


def test_turns_of_one_session_are_not_taken_for_independent() -> None:
    level_S = rng(8).normal(10, 1, 12)
    turns = np.repeat(level_S, 50) + rng(9).normal(0, 0.1, 600)
    by_session = stats.cluster_median(turns, np.repeat(np.arange(12), 50), stats.resample(12, rng(), resamples=500))
    by_turn = stats.cluster_median(turns, np.arange(600), stats.resample(600, rng(), resamples=500))
    assert by_session is not None
    assert by_turn is not None
    assert by_session.interval is not None
    assert by_turn.interval is not None
    width = by_session.interval.high - by_session.interval.low
    assert width > 3 * (by_turn.interval.high - by_turn.interval.low)


def test_paired_medians_give_back_a_constant_factor() -> None:
    turns, sessions, counts_RS = rng(1).lognormal(0, 1, 90), np.arange(90) % 9, stats.resample(9, rng())
    before, after = (stats.cluster_median(factor * turns, sessions, counts_RS) for factor in (1.0, 0.6))
    assert before is not None
    assert after is not None
    pair = stats.paired_medians(before, after)
    assert pair.ratio_interval is not None
    assert (pair.ratio, pair.ratio_interval.low, pair.ratio_interval.high) == pytest.approx((0.6, 0.6, 0.6))
    assert pair.difference == pytest.approx(-0.4 * np.median(turns))


def test_the_headline_interval_covers_the_true_saving_about_as_often_as_it_claims() -> None:
    """13 sessions of unequal length with a noisy effect: 92-93 % expected, 1.1 % sampling error here."""
    worlds, truth, noise, hits, plain = 600, 0.3, rng(10), 0, 0
    for seed in range(worlds):
        a = noise.lognormal(3, 0.6, 13)
        b = a * (1 - truth) * np.exp(noise.normal(0, 0.05, 13) - 0.05**2 / 2)
        counts_RS = stats.resample(13, rng(seed), resamples=500)
        studentised, percentile = stats.saved_share_intervals(a, b, counts_RS)
        hits += not studentised.excludes(truth)
        plain += not percentile.excludes(truth)
    assert 0.89 <= hits / worlds <= 0.97
    assert hits > plain
