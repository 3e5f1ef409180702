"""Worlds with known effects: what the analysis says of them, as often as it promises. Seeds are fixed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import gate, registry, side, stats
from analysis.change import Change
from analysis.gate import Verdict, judge
from analysis.stats import Interval
from analysis.summary import summarise

WORLDS = 500


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def ratios(effect: float, spread: float, worlds: int, seed: int, sessions: int = 13) -> Any:
    """Base and candidate times of each world: sessions of unequal length, each with a ratio of its own."""
    draw = rng(seed)
    for _ in range(worlds):
        base_S = draw.lognormal(3, 0.6, sessions)
        yield base_S, base_S * (1 + effect) * np.exp(draw.normal(0, spread, sessions) - spread**2 / 2)


def headline(base_S: stats.Floats, candidate_S: stats.Floats, counts_RS: stats.Integers) -> Change:
    share = stats.bootstrap_saved_share(base_S, candidate_S, counts_RS)
    saved = share.studentised()
    return Change(
        metric="stream_s", kind=None, sessions=len(base_S), turns=0, change=-share.value,
        interval=Interval(-saved.high, -saved.low), p=share.p_longer(), error=share.error,
    )  # fmt: skip


def verdicts(effect: float, spread: float, worlds: int, seed: int) -> list[Verdict]:
    counts_RS = stats.resample(13, rng(seed), resamples=1000)
    return [
        judge([headline(*times, counts_RS)], ["total request time"])[0].verdict
        for times in ratios(effect, spread, worlds, seed)
    ]


def test_the_saved_share_lies_in_its_interval_in_92_percent_of_500_worlds() -> None:
    counts_RS = stats.resample(13, rng(0), resamples=2000)
    hits = sum(
        not stats.bootstrap_saved_share(*times, counts_RS).studentised().excludes(0.3)
        for times in ratios(-0.3, 0.05, WORLDS, seed=1)
    )
    assert hits / WORLDS >= 0.92


def test_the_gate_raises_no_more_than_5_percent_false_alarms_when_nothing_changed() -> None:
    assert verdicts(0.0, 0.03, WORLDS, seed=2).count(Verdict.REGRESSION) / WORLDS <= 0.05


def test_the_gate_finds_a_slow_down_of_5_percent_in_90_percent_of_the_worlds() -> None:
    found = verdicts(0.05, 0.03, WORLDS, seed=3)
    assert found.count(Verdict.REGRESSION) / WORLDS >= 0.9
    assert found.count(Verdict.PASS) / WORLDS <= 0.01


def test_the_gate_passes_what_got_faster() -> None:
    found = verdicts(-0.1, 0.03, 200, seed=4)
    assert found.count(Verdict.PASS) / 200 >= 0.95
    assert Verdict.REGRESSION not in found


def decided(folder: Path) -> gate.Decision:
    rows = gate.chosen_rows([], registry.metrics())
    sides = (side.read_folder(folder / name, gate.DEFAULT_METRICS) for name in ("llamacpp", "ostinato"))
    return gate.decide(*sides, rows, resamples=1000)


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.0, Verdict.PASS), (1.08, Verdict.REGRESSION), (0.8, Verdict.PASS)]
)
def test_records_with_a_known_effect_get_the_verdict_it_deserves(
    world: Any, speed: Any, factor: float, expected: Verdict
) -> None:
    """All rows, from record files: 24 sessions whose engines vary by 1 % each."""
    folder = world({"llamacpp": speed(spread=0.01), "ostinato": speed(factor, 0.01)}, sessions=24)
    decision = decided(folder)
    assert {row.verdict for row in decision.rows} == {expected}
    assert decision.verdict is expected
    for row in decision.rows:
        assert row.change.change == pytest.approx(factor - 1, abs=0.025)


def test_rows_of_one_engine_measured_twice_raise_few_false_alarms_together(world: Any, speed: Any) -> None:
    """Five rows at once, over turns that are drawn as one engine's would be: 24 worlds of 13 sessions."""
    folder = world({"llamacpp": speed(), "ostinato": speed()}, sessions=13)
    sides = [side.read_folder(folder / name, gate.DEFAULT_METRICS) for name in ("llamacpp", "ostinato")]
    rows, draw, alarms = gate.chosen_rows([], registry.metrics()), rng(5), 0
    for _ in range(24):
        noisy = [_noisy(one, draw) for one in sides]
        alarms += gate.decide(noisy[0], noisy[1], rows, resamples=300).verdict is Verdict.REGRESSION
    assert alarms <= 2


def _noisy(one: side.Side, draw: np.random.Generator) -> side.Side:
    from dataclasses import replace

    factor = {session: float(np.exp(draw.normal(0, 0.02))) for session in one.recorded}
    scale = one.turns["session_id"].map(factor) * np.exp(draw.normal(0, 0.02, len(one.turns)))
    scaled = one.turns[list(gate.DEFAULT_METRICS)].mul(scale, axis=0)
    return replace(one, turns=one.turns.assign(**{name: scaled[name] for name in gate.DEFAULT_METRICS}))


def test_one_engine_twice_is_told_from_two_engines(world: Any, speed: Any) -> None:
    folder = world({"a": speed(spread=0.02), "b": speed(spread=0.02), "ostinato": speed(0.6, 0.02)}, sessions=13)
    for name in "ab":
        path = folder / name / "result.json"
        path.write_bytes(path.read_bytes().replace(f'"name": "{name}"'.encode(), b'"name": "llamacpp"'))
    summary = summarise(folder)
    rates = {(c.baseline, c.candidate): c.false_alarm_rate for c in summary.comparisons}
    assert rates.pop(("llamacpp (a)", "llamacpp (b)")) == pytest.approx(0.05, abs=0.06)
    assert set(rates.values()) == {None}
    from analysis import wording

    (said,) = [sentence for sentence in wording.verdicts(summary) if sentence.startswith("A/A, one engine twice: ")]
    assert "% interval" in said
    assert "smallest detectable effect" in said
    against_itself = next(c for c in summary.comparisons if c.against_itself)
    assert against_itself.smallest_effect is not None
    assert 0.005 < against_itself.smallest_effect < 0.06


def test_turn_types_of_all_engines_are_corrected_together(three: Path) -> None:
    summary = summarise(three)
    for comparison in summary.comparisons:
        assert set(comparison.adjusted_p) == {"first", "tool", "user", "tpot"}
        assert max(comparison.adjusted_p.values()) < 0.05
