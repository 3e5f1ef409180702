"""The client's own error and drift, on runs whose truth is known."""

from array import array
from dataclasses import replace

import numpy as np
import pytest

from replay.lag import PERIOD_NS, Lags
from replay.record import TurnRecord
from replay.validity.timing import drift, loop_lag, send_lateness, session_trend

MS = 1_000_000


def turn(session: int, number: int, start_ns: int, ttft_ns: int, tpot_ns: int, **changes: object) -> TurnRecord:
    first = start_ns + ttft_ns
    tokens = tuple(first + i * tpot_ns for i in range(10))
    record = TurnRecord(
        engine="fake", session_id=f"s{session}", turn=number, kind="first" if number == 0 else "tool", attempt=0,
        status="ok", prompt_tokens=1000 + 200 * number, new_tokens=1000 if number == 0 else 200, output_tokens=10,
        due_ns=start_ns, sent_ns=start_ns, first_byte_ns=first, token_ns=tokens, end_ns=tokens[-1],
        verified_by="ids",
    )  # fmt: skip
    return replace(record, **changes)


def run(sessions: int, growth: float, *, noise: float = 0.02, seed: int = 0) -> list[TurnRecord]:
    """Sessions of five turns; times grow by ``growth`` from the first session to the last."""
    rng = np.random.default_rng(seed)
    turns, now = [], 0
    for session in range(sessions):
        factor = 1 + growth * session / (sessions - 1)
        for number in range(5):
            # First turns are longer, and decoding slows with the context.
            ttft = (100 if number == 0 else 30) * factor * rng.lognormal(0, noise)
            tpot = (5 + number) * factor * rng.lognormal(0, noise)
            turns.append(turn(session, number, now, int(ttft * MS), int(tpot * MS)))
            now += 500 * MS
    return turns


def lags(late_us: list[int]) -> Lags:
    return Lags(0, PERIOD_NS, array("I", late_us))


ALL_THE_TIME = [turn(0, 0, 1, 100 * MS, 2000 * MS)]
"""One turn of 18.1 s: more than 500 probes."""


def test_a_prompt_loop_passes() -> None:
    check = loop_lag(ALL_THE_TIME, lags([80] * 500))
    assert check.ok is True
    assert check.value == "mean 0.08 ms, p99 0.08 ms, largest 0.1 ms"


def test_rare_lags_make_numbers_noisy_and_frequent_ones_make_them_wrong() -> None:
    rare = loop_lag(ALL_THE_TIME, lags([80] * 490 + [3000] * 10))
    assert (rare.ok, rare.severity) == (False, "warning")
    # The median TTFT is 100 ms; on average 2 ms late is 2 % of it.
    frequent = loop_lag(ALL_THE_TIME, lags([2000] * 500))
    assert (frequent.ok, frequent.severity) == (False, "invalid")
    assert "engine.threads" in frequent.advice


def test_the_slowest_of_a_hundred_probes_may_be_late() -> None:
    assert loop_lag(ALL_THE_TIME, lags([80] * 496 + [5000] * 4)).ok is True


@pytest.mark.parametrize("probes", [None, lags([5000] * 50)])
def test_too_few_probes_tell_nothing(probes: Lags | None) -> None:
    check = loop_lag(ALL_THE_TIME, probes)
    assert check.ok is None
    assert "fewer than 100" in check.value


def test_requests_that_leave_late_are_said_and_first_turns_do_not_count() -> None:
    queued = turn(0, 0, 0, MS, MS, due_ns=-900 * MS)
    on_time = [turn(0, n, 0, MS, MS, due_ns=-MS) for n in range(1, 200)]
    assert send_lateness([queued, *on_time]).ok is True
    late = [turn(0, n, 0, MS, MS, due_ns=-20 * MS) for n in range(200, 210)]
    check = send_lateness([queued, *on_time, *late])
    assert (check.ok, check.severity) == (False, "warning")
    assert check.value == "p50 1.00 ms, p99 20.00 ms late"
    assert send_lateness([queued]).ok is None


@pytest.mark.parametrize("growth", [0.3, -0.2])
def test_a_trend_comes_back_with_its_size(growth: float) -> None:
    for check in drift(run(12, growth)):
        assert check.ok is False
        assert check.severity == "warning"
        assert float(check.value.partition("%")[0]) / 100 == pytest.approx(growth, abs=0.05)


def test_a_steady_run_shows_no_trend() -> None:
    flagged = sum(check.ok is False for seed in range(100) for check in drift(run(12, 0.0, seed=seed)))
    assert flagged <= 4  # the two times are independent: 2 of 200 expected, without the smallest size that counts


def test_a_small_trend_is_let_pass_however_certain() -> None:
    (ttft, tpot) = drift(run(40, 0.03, noise=0.001))
    assert ttft.ok is True
    assert "z = +" in tpot.value


def test_sessions_of_unlike_length_are_no_drift() -> None:
    """Long prompts at the run's end take longer by as much as their tokens say."""
    turns = []
    for session in range(12):
        for number in range(5):
            new = 100 * (1 + session) * (1 + number)
            turns.append(
                turn(session, number, session * 1000 * MS + number, new * 1000, MS, new_tokens=new, prompt_tokens=new)
            )
    found = session_trend([(t, (t.token_ns[0] - (t.sent_ns or 0)) / 1e9) for t in turns])
    assert found is not None
    assert abs(found[0]) < 0.05 or abs(found[1]) < 2.576


def test_seven_sessions_are_too_few_for_a_trend() -> None:
    for check in drift(run(7, 0.5)):
        assert check.ok is None
        assert check.value == "fewer than 8 sessions"
