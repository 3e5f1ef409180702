"""Many comparisons at once, false alarms, and what a number of sessions can tell."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import power, stats


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_holm_worked_by_hand() -> None:
    # sorted 0.01 x 4, 0.02 x 3, 0.03 x 2, 0.9 x 1; each at least the one before it
    assert stats.holm(np.array([0.03, 0.01, 0.9, 0.02])) == pytest.approx([0.06, 0.04, 0.9, 0.06])
    assert stats.holm(np.array([0.6, 0.5])) == pytest.approx([1.0, 1.0])
    assert stats.holm(np.array([])).tolist() == []


@given(p=st.lists(st.floats(0, 1), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_holm_lies_between_no_correction_and_bonferroni(p: list[float]) -> None:
    raw = np.array(p)
    adjusted = stats.holm(raw)
    assert (adjusted >= raw).all()
    assert (adjusted <= np.minimum(1, raw * len(raw)) + 1e-12).all()


def test_max_t_of_one_comparison_is_its_own_p() -> None:
    replicates_RM = rng().normal(2, 1, (9999, 1))
    expected = (1 + (np.abs(replicates_RM[:, 0] - 2) / replicates_RM.std() >= 2 / replicates_RM.std()).sum()) / 10_000
    assert stats.max_t(np.array([2.0]), replicates_RM)[0] == pytest.approx(expected)


def test_max_t_of_copies_costs_nothing_and_of_unrelated_ones_what_it_must() -> None:
    one_R = rng(1).normal(0, 1, 20_000)
    estimate = 2.2
    alone = stats.max_t(np.array([estimate]), one_R[:, None] + estimate)[0]
    copies = stats.max_t(np.full(6, estimate), np.repeat(one_R[:, None], 6, axis=1) + estimate)
    assert copies == pytest.approx(np.full(6, alone))
    unrelated = stats.max_t(np.full(6, estimate), rng(2).normal(estimate, 1, (20_000, 6)))
    assert unrelated == pytest.approx(1 - (1 - 2 * scipy.stats.norm.sf(estimate)) ** 6, abs=0.02)


def test_max_t_tells_what_never_varies_and_passes_over_resamples_without_a_value() -> None:
    replicates_RM = np.column_stack([np.full(999, 0.7), np.full(999, 1.0), rng().normal(1, 0.1, 999)])
    replicates_RM[5, 2] = np.nan
    p_M = stats.max_t(np.array([0.7, 1.0, 1.0]), replicates_RM, null=1.0)
    assert p_M == pytest.approx([0.001, 1.0, 1.0])


def test_the_one_sided_p_is_the_interval_turned_round() -> None:
    a = rng(1).lognormal(3, 0.5, 13)
    for seed in range(20):
        b = a * 1.02 * np.exp(rng(seed).normal(0, 0.03, 13))
        found = stats.bootstrap_saved_share(a, b, stats.resample(13, rng(seed), resamples=2000))
        assert (found.studentised().high < 0) == (found.p_longer() <= 0.025)
    assert stats.bootstrap_saved_share(a, 1.1 * a, stats.resample(13, rng(), resamples=99)).p_longer() == 0.01
    assert stats.bootstrap_saved_share(a, a, stats.resample(13, rng(), resamples=99)).p_longer() == 1


def test_relabelled_sessions_of_one_engine_alarm_about_as_often_as_claimed() -> None:
    one = rng(1).lognormal(3, 0.3, 24)
    other = one * np.exp(rng(2).normal(0, 0.03, 24))
    assert power.aa_false_alarm_rate(one, other, rng(3), relabellings=150) == pytest.approx(0.05, abs=0.06)
    assert power.aa_false_alarm_rate(one, other, rng(3), alarm=lambda found: True) == 1
    assert power.aa_false_alarm_rate(one, one, rng(3)) == 0


def test_the_smallest_effect_is_seen_as_often_as_it_says() -> None:
    """Sessions of one length, so that the error is known beforehand: 0.03 / sqrt(20)."""
    error, worlds, noise = 0.03 / 20**0.5, 400, rng(4)
    smallest = power.smallest_effect(error, 20)
    assert smallest == pytest.approx((scipy.stats.t.ppf(0.975, 19) + scipy.stats.norm.ppf(0.9)) * error)
    counts_RS = stats.resample(20, rng(5), resamples=500)
    seen = 0
    for _ in range(worlds):
        longer = np.ones(20) * (1 + smallest) + noise.normal(0, 0.03, 20)
        seen += stats.bootstrap_saved_share(np.ones(20), longer, counts_RS).studentised().high < 0
    assert seen / worlds == pytest.approx(0.9, abs=0.06)
    assert power.smallest_effect(error, 20, margin=0.05) == pytest.approx(0.05 + scipy.stats.norm.ppf(0.9) * error)


def test_an_interval_for_five_comparisons_is_wider_as_its_quantile() -> None:
    assert power.widening(1) == 1
    assert power.widening(5) == pytest.approx(scipy.stats.norm.ppf(0.995) / scipy.stats.norm.ppf(0.975))


def test_sessions_needed_worked_by_hand() -> None:
    assert power.sessions_needed(0.04, 0.02, 13) == 52  # half as wide: four times as many
    assert power.sessions_needed(0.01, 0.02, 13) == 13
    assert power.sessions_needed(0.001, 0.02, 3) == stats.SMALLEST_SAMPLE
    assert power.sessions_needed(0.04, 0.0, 13) is None
    assert power.sessions_needed(0.04, 1e-6, 13) is None
