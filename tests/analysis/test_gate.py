"""The three verdicts worked by hand, what keeps a gate from passing, and what it refuses to judge."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis import gate, registry, side
from analysis.change import Change
from analysis.compare import AnalysisError
from analysis.gate import Verdict, judge
from analysis.stats import Interval


def change(worse: float, low: float, high: float, p: float, sessions: int = 13) -> Change:
    return Change(
        metric="stream_s", kind=None, sessions=sessions, turns=99, base=1.0, candidate=1 + worse,
        change=worse, interval=Interval(low, high), p=p,
    )  # fmt: skip


def verdict(*arguments: float, margin: float = 0.03) -> tuple[Verdict, int | None]:
    (row,) = judge([change(*arguments)], ["it"], margin=margin)
    return row.verdict, row.more_sessions


def test_a_regression_is_surely_slower_and_beyond_the_margin() -> None:
    assert verdict(0.05, 0.02, 0.08, 0.001) == (Verdict.REGRESSION, None)
    assert verdict(0.05, 0.035, 0.08, 0.001) == (Verdict.REGRESSION, None)
    assert verdict(0.02, 0.01, 0.08, 0.001)[0] is Verdict.INCONCLUSIVE
    rows = judge([change(0.05, 0.02, 0.08, 0.001), change(0.05, 0.035, 0.08, 0.001)], ["it", "it"])
    assert [row.reason for row in rows] == [
        "surely worse, the estimate beyond 3 %", "even the interval lies beyond 3 %",
    ]  # fmt: skip


def test_a_pass_lies_entirely_within_the_margin_or_is_better() -> None:
    assert verdict(0.02, 0.01, 0.03, 0.001) == (Verdict.PASS, None)  # surely slower, by too little to matter
    assert verdict(0.0, -0.02, 0.02, 0.5) == (Verdict.PASS, None)
    assert verdict(-0.2, -0.3, -0.1, 1.0) == (Verdict.PASS, None)


def test_what_may_be_noise_or_beyond_the_margin_is_inconclusive_and_says_how_many_more_would_decide() -> None:
    # the estimate is 0.05 above 0, its interval reaches 0.10 below: twice as far, so four times the sessions
    assert verdict(0.05, -0.05, 0.15, 0.2) == (Verdict.INCONCLUSIVE, 39)
    # the estimate is 0.02 below the margin, its interval reaches 0.04 above it
    assert verdict(0.01, -0.03, 0.05, 0.3) == (Verdict.INCONCLUSIVE, 39)
    assert verdict(0.03, 0.0, 0.06, 0.03) == (Verdict.INCONCLUSIVE, None)  # as large as the margin itself


def test_the_margin_decides_what_is_small() -> None:
    assert verdict(0.05, 0.02, 0.08, 0.001, margin=0.1)[0] is Verdict.PASS
    assert verdict(0.05, 0.02, 0.08, 0.001, margin=0.01)[0] is Verdict.REGRESSION


def test_many_rows_are_corrected_for_one_another() -> None:
    one = change(0.05, 0.001, 0.1, 0.02)
    assert judge([one], ["it"])[0].verdict is Verdict.REGRESSION
    calm = change(0.0, -0.01, 0.01, 0.6)
    rows = judge([one, *[calm] * 4], ["it"] * 5)
    assert [row.verdict for row in rows] == [Verdict.INCONCLUSIVE, *[Verdict.PASS] * 4]
    assert rows[0].adjusted_p == pytest.approx(0.1)
    # alone its interval excludes 0; for five rows it is 1.314 times as wide: 13 x (1.314 x 0.049 / 0.05) ** 2 = 21.6
    assert rows[0].more_sessions == 22 - 13
    sure = change(0.05, 0.02, 0.1, 0.004)
    assert judge([sure, *[calm] * 4], ["it"] * 5)[0].verdict is Verdict.REGRESSION


# -- from records ---------------------------------------------------------------------------------------------------


def sides(folder: Path, *names: str) -> tuple[side.Side, side.Side]:
    base, candidate = (side.read_folder(folder / name, names or gate.DEFAULT_METRICS) for name in ("a", "b"))
    return base, candidate


def decide(pair: tuple[side.Side, side.Side], *wanted: str, **options: Any) -> gate.Decision:
    rows = gate.chosen_rows(wanted, registry.metrics())
    return gate.decide(*pair, rows, asked=bool(wanted), resamples=500, **options)


def test_every_metric_and_turn_type_has_its_row(world: Any, speed: Any) -> None:
    decision = decide(sides(world({"a": speed(spread=0.005), "b": speed(1.1, 0.005)}, sessions=10)))
    assert [row.change.name for row in decision.rows] == [
        "stream_s", "ttft_s:first", "ttft_s:tool", "ttft_s:user", "tpot_s",
    ]  # fmt: skip
    assert [row.label for row in decision.rows][:3] == [
        "total request time", "TTFT first, median", "TTFT after tool, median",
    ]  # fmt: skip
    assert decision.verdict is Verdict.REGRESSION
    assert decision.smallest_effect is not None


def test_seven_sessions_give_no_verdict_and_say_how_many_are_missing(world: Any, speed: Any) -> None:
    decision = decide(sides(world({"a": speed(), "b": speed(2.0)}, sessions=7)))
    assert (decision.verdict, decision.more_sessions) == (Verdict.INCONCLUSIVE, 1)
    assert all(row.change.interval is None for row in decision.rows)
    assert decision.rows[0].change.change == pytest.approx(1.0, abs=0.01)


def test_a_kind_of_turn_too_rare_to_judge_counts_only_when_it_was_asked_for(world: Any, speed: Any) -> None:
    """The fourth turn is the only one after a user, and few sessions keep it."""

    def rare(made: list[Any]) -> list[Any]:
        return [replace(r, kind="tool") if r.session_id > "session-03" and r.kind == "user" else r for r in made]

    pair = sides(world({"a": speed(), "b": speed()}, sessions=9, records={"a": rare, "b": rare}))
    by_name = {row.change.name: row for row in decide(pair).rows}
    assert by_name["ttft_s:user"].verdict is Verdict.NONE
    assert by_name["ttft_s:user"].reason == "no interval below 8 sessions"
    assert decide(pair).verdict is Verdict.PASS
    assert decide(pair, "stream_s", "ttft_s:user").verdict is Verdict.INCONCLUSIVE


def test_what_an_engine_does_not_report_is_empty_with_the_reason(world: Any, speed: Any) -> None:
    def silent(made: list[Any]) -> list[Any]:
        return [replace(r, server_prefill_s=None) for r in made]

    pair = sides(world({"a": speed(), "b": speed()}, records={"b": silent}), "server_prefill_s")
    (row,) = decide(pair, "server_prefill_s").rows
    assert (row.change.base, row.change.candidate, row.change.change) == (None, None, None)
    assert row.reason == "candidate: 40 of 40 turns have no value (the engine does not report it)"
    assert row.verdict is Verdict.NONE


def test_medians_are_over_the_turns_that_both_sides_have(world: Any, speed: Any) -> None:
    """The candidate's short outputs come in one chunk and have no TPOT: the base's must not count either."""

    def merged(made: list[Any]) -> list[Any]:
        return [replace(r, token_ns=(r.token_ns[0],) * len(r.token_ns)) if r.turn == 0 else r for r in made]

    def slow_first(made: list[Any]) -> list[Any]:
        return [
            replace(r, token_ns=tuple(t + 10**8 * i for i, t in enumerate(r.token_ns)), end_ns=r.end_ns + 10**11)
            if r.turn == 0
            else r
            for r in made
        ]

    pair = sides(world({"a": speed(), "b": speed()}, turns=2, records={"a": slow_first, "b": merged}), "tpot_s")
    (row,) = decide(pair, "tpot_s").rows
    assert row.change.turns == 8
    assert row.change.change == pytest.approx(0, abs=1e-6)


def test_more_of_what_should_be_high_is_better(world: Any, speed: Any) -> None:
    from analysis.metric import Direction

    pair = sides(world({"a": speed(), "b": speed(0.5)}), "ttft_s")
    high = replace(registry.metrics()["ttft_s"], direction=Direction.HIGHER)
    decision = gate.decide(*pair, [(high, None)], resamples=300)
    assert decision.rows[0].change.change == pytest.approx(1.0, abs=0.01)  # half of it is 100 % worse
    assert decision.verdict is Verdict.REGRESSION


def test_a_candidate_that_lost_a_session_does_not_pass(world: Any, speed: Any, fail_turn: Any) -> None:
    folder = world({"a": speed(), "b": speed()}, sessions=10, records={"b": fail_turn("session-04", 1)})
    decision = decide(sides(folder))
    assert decision.verdict is Verdict.INCONCLUSIVE
    assert len(decision.sessions) == 9
    (reason,) = (said for said in decision.reasons if said.startswith("the candidate lacks"))
    assert reason.startswith("the candidate lacks 1 of the base's sessions: session-04 (b: turn 1 failed: tokens")


def test_a_run_whose_numbers_are_wrong_does_not_pass(world: Any, speed: Any) -> None:
    wrong = [{"name": "cache", "ok": False, "value": "warm", "severity": "invalid", "advice": "restart"}]
    decision = decide(sides(world({"a": speed(), "b": speed()}, results={"b": {"validity": wrong}})))
    assert (decision.verdict, decision.reasons) == (
        Verdict.INCONCLUSIVE,
        ("candidate: not valid: cache: warm",),
    )


def test_a_warning_lets_it_pass(world: Any, speed: Any) -> None:
    noisy = [{"name": "drift", "ok": False, "value": "3 %", "severity": "warning", "advice": "wait"}]
    assert (
        decide(sides(world({"a": speed(), "b": speed()}, results={"b": {"validity": noisy}}))).verdict is Verdict.PASS
    )


def test_repeats_of_both_sides_are_a_second_level(world: Any, speed: Any) -> None:
    """Base: two repeats that differ by 20 %. With one level the interval would be a point."""

    def slower(made: list[Any]) -> list[Any]:
        return [
            replace(r, repeat=1, end_ns=r.end_ns + (r.end_ns - r.sent_ns) // 5) for r in made
        ]  # the same sessions again

    again = {"engine": {"name": "a", "label": "A", "note": "", "settings": {}, "server": {}}, "repeat": 1}
    folder = world(
        {"a": speed(), "again": speed(), "b": speed()},
        sessions=12,
        records={"again": slower},
        results={"again": again},
    )
    base = side.read_folder(folder, ["stream_s"], "a")
    candidate = side.read_folder(folder / "b", ["stream_s"])
    (row,) = gate.decide(base, candidate, [(registry.metrics()["stream_s"], None)], resamples=500).rows
    assert row.change.change == pytest.approx(1 / 1.1 - 1, abs=1e-3)
    assert row.change.interval is not None


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("model", {"name": "tiny", "hash": "other"}, "model.hash: ab12 in the base, other in the candidate"),
        ("workload", {"name": "made-up", "hash": "x", "sessions": 8, "turns": 40}, "workload.hash: 5e55104 in the"),
    ],
)
def test_other_work_is_never_compared(world: Any, speed: Any, field: str, value: Any, told: str) -> None:
    pair = sides(world({"a": speed(), "b": speed()}, results={"b": {field: value}}))
    with pytest.raises(AnalysisError, match=f"^not comparable: {told}.*; replay both alike$"):
        decide(pair)
    with pytest.raises(AnalysisError, match=f"not comparable even across machines: {told}"):
        decide(pair, across_machines=True)


def test_other_machines_are_shown_without_interval_and_verdict(world: Any, speed: Any) -> None:
    elsewhere = {"environment": {"machine": "9c01", "cpu": "Other", "cores": 2, "gpus": None, "kernel": "6.1.0"}}
    pair = sides(world({"a": speed(), "b": speed(2.0)}, results={"b": elsewhere}))
    with pytest.raises(AnalysisError, match=r"environment\.machine: 3f2a .*; --across-machines shows them without"):
        decide(pair)
    decision = decide(pair, across_machines=True)
    assert decision.verdict is Verdict.NONE
    assert gate.EXIT[decision.verdict] == 3
    assert {row.verdict for row in decision.rows} == {Verdict.NONE}
    assert decision.rows[0].change.interval is None
    assert decision.rows[0].change.change == pytest.approx(1.0, abs=0.01)
    assert [said.partition(":")[0] for said in decision.differences] == ["environment.machine", "environment.cpu"]


def test_sides_that_replayed_other_turns_or_other_sessions_are_refused(world: Any, speed: Any) -> None:
    base, candidate = sides(world({"a": speed(), "b": speed()}))
    with pytest.raises(AnalysisError, match=r"session 'session-02': .* did not replay the same turns"):
        decide((base, replace(candidate, recorded={**candidate.recorded, "session-02": "…"})))
    with pytest.raises(AnalysisError, match="no finished session in common"):
        decide((base, replace(candidate, recorded={"other": "…"})))


@pytest.mark.parametrize("wanted", ["speed", "prefilled_as_expected", "ttft_s:assistant"])
def test_what_cannot_be_judged_is_refused(wanted: str) -> None:
    with pytest.raises(AnalysisError, match=f"^--metric {wanted}: "):
        gate.chosen_rows([wanted], registry.metrics())


def test_a_metric_is_judged_over_all_turns_or_of_one_kind() -> None:
    rows = gate.chosen_rows(["ttft_s:all", "tpot_s:tool", "tpot_s:tool"], registry.metrics())
    assert [(metric.name, kind) for metric, kind in rows] == [("ttft_s", None), ("tpot_s", "tool")]
