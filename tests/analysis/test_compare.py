"""Known effects come back, and what they are called."""

from pathlib import Path
from typing import Any

import pytest

from analysis import wording
from analysis.compare import AnalysisError, choose_baseline
from analysis.summary import summarise


def test_known_effects_come_back_within_their_intervals(three: Path) -> None:
    summary = summarise(three)
    assert [(c.baseline, c.candidate) for c in summary.comparisons] == [
        ("llamacpp", "ostinato"),
        ("llamacpp", "ik_llamacpp"),
        ("ik_llamacpp", "ostinato"),
    ]
    for comparison, truth in zip(summary.comparisons, (0.4, 0.1, 1 - 0.6 / 0.9), strict=True):
        assert comparison.interval is not None
        assert comparison.percentile is not None
        assert not comparison.interval.excludes(truth)
        assert comparison.interval.high - comparison.interval.low < 0.1
        assert comparison.decided
        assert comparison.p_value is not None
        assert comparison.p_value < 0.05
    against_llamacpp = summary.comparisons[0]
    assert against_llamacpp.won == 8
    assert set(against_llamacpp.ttft) == {"first", "tool", "user"}
    for pair in (*against_llamacpp.ttft.values(), against_llamacpp.tpot):
        assert pair is not None
        assert pair.ratio == pytest.approx(0.6, abs=0.05)
        assert pair.ratio_interval is not None


def test_a_factor_without_noise_is_its_own_interval(world: Any, speed: Any) -> None:
    (comparison,) = summarise(world({"llamacpp": speed(), "ostinato": speed(0.5)})).comparisons
    assert comparison.interval is not None
    # 0.1 ms of every turn is the end of the stream, which has no factor.
    assert comparison.saved == pytest.approx(0.5, abs=2e-3)
    assert comparison.interval.high - comparison.interval.low < 1e-3


def test_total_request_time_is_the_sum_over_the_common_sessions(world: Any, speed: Any, fail_turn: Any) -> None:
    summary = summarise(
        world({"llamacpp": speed(), "ostinato": speed(0.5)}, records={"ostinato": fail_turn("session-03", 1)})
    )
    turns = summary.runs[0].turns
    common = turns[turns["session_id"] != "session-03"]
    assert summary.engines[0].sessions == 7
    assert summary.engines[0].total_request_s == pytest.approx(float(common["stream_s"].sum()))
    assert summary.engines[1].turns_failed == 1


def test_engines_that_ran_the_sessions_in_another_order_are_still_paired(world: Any, speed: Any) -> None:
    def reversed_sessions(made: list[Any]) -> list[Any]:
        return sorted(made, key=lambda record: (record.session_id, -record.turn), reverse=True)

    speeds = {"llamacpp": speed(spread=0.3), "ostinato": speed(0.5, spread=0.3)}
    summary = summarise(world(speeds, records={"ostinato": reversed_sessions}))
    ratio = summary.comparisons[0].ttft["tool"]
    times = summary.turns.pivot_table(index="session_id", columns="engine", values="stream_s", aggfunc="sum")
    saved = 1 - times["ostinato"] / times["llamacpp"]
    assert summary.comparisons[0].saved_by_session == pytest.approx(saved.to_dict())
    assert ratio.ratio_interval is not None
    assert not ratio.ratio_interval.excludes(ratio.ratio)


@pytest.mark.parametrize(
    ("engines", "wanted", "chosen"),
    [
        (["ik_llamacpp", "llamacpp", "ostinato"], None, "llamacpp"),
        (["ostinato", "vllm", "sglang"], None, "vllm"),
        (["ostinato"], None, "ostinato"),
        (["llamacpp", "ostinato"], "ostinato", "ostinato"),
    ],
)
def test_the_baseline_is_the_one_asked_for_or_the_usual_one(engines: list[str], wanted: str, chosen: str) -> None:
    assert choose_baseline(engines, wanted) == chosen


def test_an_unknown_baseline_names_those_there_are() -> None:
    with pytest.raises(AnalysisError, match=r"no engine 'vllm' .* name one of llamacpp, ostinato"):
        choose_baseline(["llamacpp", "ostinato"], "vllm")


def test_a_faster_engine_finishes_sooner(three: Path) -> None:
    assert wording.verdicts(summarise(three))[0].startswith(
        "Ostinato finishes the 8 sessions 1.7× sooner than llama.cpp"
    )


def test_a_slower_engine_takes_longer(three: Path) -> None:
    sentence = wording.verdicts(summarise(three, baseline="ostinato"))[0]
    assert sentence.startswith("ik_llama.cpp takes 1.5× as long as Ostinato over the 8 sessions; 95 % interval 1.")
    assert sentence.endswith("; won 0 of 8.")


def test_an_interval_that_holds_zero_shows_no_difference(world: Any, speed: Any) -> None:
    summary = summarise(world({"llamacpp": speed(spread=0.1), "ostinato": speed(spread=0.1)}))
    (comparison,) = summary.comparisons
    assert not comparison.decided
    assert wording.verdicts(summary)[0].startswith(
        "No difference shown between Ostinato and llama.cpp over the 8 ses"
    )


def test_seven_sessions_give_points_only_and_say_so(world: Any, speed: Any) -> None:
    summary = summarise(world({"llamacpp": speed(spread=0.1), "ostinato": speed(0.5, 0.1)}, sessions=7))
    (comparison,) = summary.comparisons
    assert (comparison.interval, comparison.percentile, comparison.p_value) == (None, None, None)
    assert all(pair.ratio_interval is None for pair in comparison.ttft.values())
    sentence = wording.verdicts(summary)[0]
    assert "points only, no interval and no verdict" in sentence
    assert "sooner" not in sentence


def test_unlike_runs_get_no_verdict_but_their_own_numbers(world: Any, speed: Any) -> None:
    unlike = {"ostinato": {"model": {"name": "tiny", "hash": "other"}}}
    summary = summarise(world({"llamacpp": speed(), "ostinato": speed(0.5)}, results=unlike))
    assert summary.comparisons == ()
    assert not summary.valid
    assert wording.verdicts(summary) == [
        "Not compared: the runs are not alike. model.hash: llama.cpp ab12, Ostinato other."
    ]
    assert all(engine.total_request_s for engine in summary.engines)


def test_one_engine_has_nothing_to_be_compared_with(world: Any, speed: Any) -> None:
    summary = summarise(world({"ostinato": speed()}))
    assert summary.baseline is None
    assert wording.verdicts(summary)[0].startswith("One engine, nothing to compare: Ostinato takes ")


def test_what_an_engine_does_not_report_is_absent(world: Any, speed: Any) -> None:
    from dataclasses import replace

    def silent(made: list[Any]) -> list[Any]:
        return [replace(r, server_prefill_s=None, prefilled_tokens=None, cached_tokens=None) for r in made]

    (engine,) = summarise(world({"ostinato": speed()}, sessions=2, records={"ostinato": silent})).engines
    assert engine.server_prefill_s is None
    assert engine.server_decode_s is not None
    assert (engine.prefill_as_expected, engine.prefill_reported) == (0, 0)
