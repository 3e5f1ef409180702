"""Repeats as a second level: drawn within the sessions that are drawn."""

import numpy as np
import pytest

from analysis import stats
from analysis.resampling import drawn_means, drawn_sessions


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_a_session_drawn_twice_has_two_draws_of_each_repeat() -> None:
    counts_RS = np.array([[2, 0, 1], [1, 1, 1]])
    counts_RU = stats.repeat_counts(counts_RS, 4, rng())
    assert counts_RU.shape == (2, 12)
    assert counts_RU.reshape(2, 3, 4).sum(axis=2).tolist() == [[8, 0, 4], [4, 4, 4]]


def test_one_repeat_is_no_second_level() -> None:
    counts_RS = stats.resample(5, rng(), resamples=10)
    assert stats.repeat_counts(counts_RS, 1, rng()) is counts_RS
    a, b = rng(1).lognormal(2, 0.5, 12), rng(2).lognormal(1.8, 0.5, 12)
    counts_RS = stats.resample(12, rng(3), resamples=300)
    plain, nested = (
        stats.bootstrap_saved_share(x, y, counts_RS, rng(4)) for x, y in ((a, b), (a[:, None], b[:, None]))
    )
    assert plain.studentised() == nested.studentised()


def test_counts_and_draws_name_the_same_sessions() -> None:
    counts_RS = stats.resample(6, rng(), resamples=50)
    drawn_RS = drawn_sessions(counts_RS)
    assert (np.stack([np.bincount(row, minlength=6) for row in drawn_RS]) == counts_RS).all()


def test_drawn_means_come_from_the_drawn_sessions_repeats() -> None:
    values_SK = np.array([[1.0, 1.0], [10.0, 20.0]])
    means_RS = drawn_means(values_SK, np.array([[0, 1]] * 4000), rng())
    assert (means_RS[:, 0] == 1).all()
    assert set(np.unique(means_RS[:, 1])) == {10.0, 15.0, 20.0}
    assert means_RS[:, 1].mean() == pytest.approx(15, abs=0.3)


def test_two_levels_agree_with_a_plain_loop() -> None:
    """The percentile interval and the studentised one, both sides with repeats, one with fewer."""
    a_SK = rng(1).lognormal(2, 0.5, (12, 1)) * rng(2).lognormal(0, 0.1, (12, 3))
    b_SK = 0.8 * a_SK.mean(axis=1, keepdims=True) * rng(3).lognormal(0, 0.1, (12, 2))
    found = stats.bootstrap_saved_share(a_SK, b_SK, stats.resample(12, rng(4), resamples=20_000), rng(5))
    draw, shares, t = rng(6), [], []
    for _ in range(4000):
        sessions = draw.integers(0, 12, 12)
        a, b = (
            x[sessions[:, None], draw.integers(0, x.shape[1], (12, x.shape[1]))].mean(axis=1) for x in (a_SK, b_SK)
        )
        shares.append(stats.saved_share(a, b))
        t.append((shares[-1] - found.value) / stats.saved_share_error(a, b))
    percentile, studentised = found.percentile(), found.studentised()
    width = percentile.high - percentile.low
    assert (percentile.low, percentile.high) == pytest.approx(
        tuple(np.quantile(shares, [0.025, 0.975])), abs=0.08 * width
    )
    low, high = found.value - np.quantile(t, [0.975, 0.025]) * found.error
    assert (studentised.low, studentised.high) == pytest.approx((low, high), abs=0.12 * width)


def test_the_interval_covers_the_truth_when_repeats_are_noisy() -> None:
    noise, truth, hits, worlds = rng(7), 0.2, 0, 250
    counts_RS = stats.resample(13, rng(8), resamples=400)
    for _ in range(worlds):
        session = noise.lognormal(3, 0.6, (13, 1))
        a = session * noise.lognormal(0, 0.05, (13, 3))
        own = np.exp(noise.normal(0, 0.02, (13, 1)))
        b = session * own * (1 - truth) * noise.lognormal(0, 0.05, (13, 3))
        hits += not stats.bootstrap_saved_share(a, b, counts_RS, noise).studentised().excludes(truth)
    assert 0.88 <= hits / worlds <= 0.99


def test_a_median_with_repeats_pools_the_turns_of_the_repeats_drawn() -> None:
    """Ten sessions whose two repeats disagree: one level would see no spread at all."""
    values_N, session_N, repeat_N = np.tile([1.0, 2.0], 10), np.repeat(np.arange(10), 2), np.tile([0, 1], 10)
    counts_RS = stats.resample(10, rng(), resamples=2000)
    flat = stats.cluster_median(values_N, session_N, counts_RS)
    counts_RU = stats.repeat_counts(counts_RS, 2, rng(1))
    nested = stats.cluster_median(values_N, session_N * 2 + repeat_N, counts_RU, repeats=2)
    assert flat is not None
    assert nested is not None
    assert (flat.interval, nested.sessions) == (stats.Interval(1.5, 1.5), 10)
    assert nested.interval == stats.Interval(1.0, 2.0)


def test_quantiles_are_those_of_the_turns_drawn() -> None:
    value_N, session_N = rng(1).normal(size=60), rng(2).integers(0, 7, 60)
    counts_RS = stats.resample(7, rng(3), resamples=40)
    for q in (0.0, 0.25, 0.9, 0.99, 1.0):
        ours_R = stats.resampled_quantiles(value_N, session_N, counts_RS, q, chunk=16)
        drawn = [np.quantile(np.repeat(value_N, counts_S[session_N]), q) for counts_S in counts_RS]
        assert ours_R == pytest.approx(np.array(drawn))
    found = stats.cluster_quantile(value_N, np.arange(60) % 8, stats.resample(8, rng(4), resamples=200), 0.9)
    assert found is not None
    assert found.value == np.quantile(value_N, 0.9)
