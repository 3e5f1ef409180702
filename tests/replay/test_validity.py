"""Each check on turns made by hand, with the value worked out beside it."""

from dataclasses import replace

from replay.record import TurnRecord
from replay.validity import cache_reuse, checks, last_attempts, sessions_complete, tokens_verified, totals_agree

MS = 1_000_000

GOOD = TurnRecord(
    engine="fake",
    session_id="a",
    turn=1,
    kind="tool",
    attempt=0,
    status="ok",
    prompt_tokens=100,
    new_tokens=20,
    output_tokens=3,
    due_ns=0,
    sent_ns=0,
    first_byte_ns=50 * MS,
    token_ns=(60 * MS, 80 * MS, 100 * MS),
    end_ns=101 * MS,
    verified_by="ids",
    cached_tokens=79,
    prefilled_tokens=21,
    server_prefill_s=0.060,
    server_decode_s=0.040,
)
BAD = replace(GOOD, status="wrong_tokens", error="position 2", verified_by=None, token_ns=())


def test_good_turns_pass_every_check() -> None:
    found = checks([GOOD, replace(GOOD, turn=2)], {"a": "complete"}, expected_sessions=1, warmed_up=True)
    assert [check.ok for check in found] == [True] * 5
    assert not any(check.advice for check in found)


def test_a_turn_that_was_not_verified_fails_the_run() -> None:
    check = tokens_verified([GOOD, BAD])
    assert not check.ok
    assert check.value == "1 of 2 turns, 3 tokens"
    assert "server.log" in check.advice


def test_no_turns_verify_nothing() -> None:
    assert not tokens_verified([]).ok


def test_only_the_last_attempt_at_a_session_counts() -> None:
    again = replace(GOOD, attempt=1)
    other = replace(GOOD, session_id="b")
    assert last_attempts([BAD, other, again]) == [other, again]


def test_an_interrupted_run_counts_sessions_that_never_began() -> None:
    check = sessions_complete({"a": "complete", "b": "failed"}, 5)
    assert not check.ok
    assert check.value == "1 of 5"


def test_one_token_beyond_the_new_ones_is_the_last_output_token() -> None:
    assert cache_reuse([GOOD]).ok
    missed = cache_reuse([GOOD, replace(GOOD, prefilled_tokens=100, cached_tokens=0)])
    assert not missed.ok
    assert missed.value == "1 of 2 later turns, 79 tokens prefilled again"  # 100 - 20 - 1


def test_a_first_turn_has_nothing_to_reuse() -> None:
    assert cache_reuse([replace(GOOD, turn=0, prefilled_tokens=100)]).ok is None


def test_an_engine_that_reports_nothing_is_not_called_good() -> None:
    silent = replace(GOOD, prefilled_tokens=None, server_prefill_s=None, server_decode_s=None)
    assert cache_reuse([silent]).ok is None
    assert totals_agree([silent]).ok is None


def test_the_time_outside_the_server_is_said() -> None:
    # The client waited 100 ms, the server accounts for 90: 11.11 % more, 10 ms a turn.
    check = totals_agree([replace(GOOD, server_decode_s=0.030)])
    assert not check.ok
    assert check.value == "client +11.11%, +10.00 ms a turn"
