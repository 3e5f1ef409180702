"""Each check on turns made by hand, with the value worked out beside it."""

from dataclasses import replace

import pytest

from replay.record import TurnRecord
from replay.validity.answers import (
    cache_reuse,
    first_turns_cold,
    prefix_breaks,
    sessions_complete,
    tokens_verified,
    totals_agree,
    warm_up,
)
from replay.validity.check import last_attempts, quantile

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
FIRST = replace(GOOD, turn=0, kind="first", new_tokens=100, cached_tokens=0, prefilled_tokens=100)
BAD = replace(GOOD, status="wrong_tokens", error="position 2", verified_by=None, token_ns=())


def test_good_turns_pass_without_advice() -> None:
    turns = [FIRST, GOOD, replace(GOOD, turn=2)]
    found = [check(turns) for check in (tokens_verified, first_turns_cold, cache_reuse, totals_agree)]
    found += [warm_up(True), sessions_complete({"a": "complete"}, 1), prefix_breaks({})]
    assert [check.ok for check in found] == [True] * 7
    assert not any(check.advice for check in found)


def test_a_turn_that_was_not_verified_fails_the_run() -> None:
    check = tokens_verified([GOOD, BAD])
    assert (check.ok, check.severity) == (False, "invalid")
    assert check.value == "1 of 2 turns, 3 tokens"
    assert "server.log" in check.advice


def test_no_turns_verify_nothing() -> None:
    assert not tokens_verified([]).ok


def test_only_the_last_attempt_at_a_session_counts() -> None:
    again = replace(GOOD, attempt=1)
    other = replace(GOOD, session_id="b")
    assert last_attempts([BAD, other, again]) == [other, again]


def test_sessions_that_never_began_are_missed_but_leave_the_others_right() -> None:
    check = sessions_complete({"a": "complete", "b": "failed"}, 5)
    assert (check.ok, check.severity, check.value) == (False, "warning", "1 of 5")


def test_a_run_without_warm_up_is_not_valid() -> None:
    assert (warm_up(False).ok, warm_up(False).severity) == (False, "invalid")


def test_one_token_beyond_the_new_ones_is_the_last_output_token() -> None:
    assert cache_reuse([GOOD]).ok
    missed = cache_reuse([GOOD, replace(GOOD, prefilled_tokens=100, cached_tokens=0)])
    assert missed.ok is False
    assert missed.value == "1 of 2 later turns, 79 tokens prefilled again"  # 100 - 20 - 1


@pytest.mark.parametrize(("prefilled", "ok"), [(21, True), (36, True), (37, False)])
def test_a_cache_of_whole_blocks_may_lose_the_one_that_was_not_full(prefilled: int, ok: bool) -> None:
    # 80 tokens were in the prompt before and 79 computed: blocks of 16 hold 64 to 79 of them, 21 to 36 are left.
    check = cache_reuse([replace(GOOD, prefilled_tokens=prefilled)], block_tokens=16)
    assert check.ok is ok
    assert check.threshold == "new tokens + 16 prefilled at most, on every later turn"
    assert ("engine.cache_block_tokens" in check.advice) is not ok


def test_a_first_turn_has_nothing_to_reuse() -> None:
    assert cache_reuse([FIRST]).ok is None
    assert cache_reuse([FIRST]).value == "no session has a second turn"


def test_a_first_turn_that_found_a_cache_mixes_warm_and_cold() -> None:
    warm = first_turns_cold([FIRST, replace(FIRST, session_id="b", prefilled_tokens=40)])
    assert (warm.ok, warm.severity) == (False, "invalid")
    assert warm.value == "60 of 200 tokens cached, 1 of 2 first turns"
    assert first_turns_cold([replace(FIRST, prefilled_tokens=99)]).ok  # 1 %


def test_an_engine_that_reports_nothing_is_not_called_good() -> None:
    silent = replace(GOOD, prefilled_tokens=None, server_prefill_s=None, server_decode_s=None)
    for check in (cache_reuse([silent]), totals_agree([silent]), first_turns_cold([replace(silent, turn=0)])):
        assert check.ok is None
        assert "not report" in check.value


def test_the_time_outside_the_server_is_said() -> None:
    # The client waited 100 ms, the server accounts for 90: 11.11 % more, 10 ms a turn.
    check = totals_agree([replace(GOOD, server_decode_s=0.030)])
    assert (check.ok, check.severity) == (False, "invalid")
    assert check.value == "client +11.11%, +10.00 ms a turn"


@pytest.mark.parametrize(("server_s", "ok"), [(0.0990, True), (0.0984, False), (0.1014, True), (0.1017, False)])
def test_totals_may_differ_by_half_a_percent_and_a_millisecond_a_turn(server_s: float, ok: bool) -> None:
    # The client saw 100 ms: 98.51 to 101.51 ms are 0.5 % of the server's and 1 ms away from that.
    assert totals_agree([replace(GOOD, server_prefill_s=server_s, server_decode_s=0.0)]).ok is ok


def test_a_short_turn_is_not_called_wrong_for_the_time_that_http_takes() -> None:
    short = replace(GOOD, token_ns=(5 * MS,), server_prefill_s=0.0047, server_decode_s=0.0)
    assert totals_agree([short]).ok  # 6 % more, 0.3 ms


def test_prefix_breaks_are_taken_from_what_the_loader_lost() -> None:
    check = prefix_breaks({"turns whose prefix the chat template broke": 3, "turns cut off": 5})
    assert (check.ok, check.severity, check.value) == (False, "warning", "3")


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 2), (0.51, 3), (0.99, 4), (1.0, 4)])
def test_a_quantile_is_one_of_the_values(share: float, value: float) -> None:
    assert quantile([4, 1, 3, 2], share) == value
