"""Checks on forcing, on turns made by hand with the value worked out beside it."""

from dataclasses import replace

from replay.record import TurnRecord
from replay.validity.forcing import one_request_a_turn, stamps_agree

MS = 1_000_000


def turn(late_us: list[int], *, gap_ns: int = 10 * MS, **changes: object) -> TurnRecord:
    """The server chooses a token every ``gap_ns``; the client stamps each so much later."""
    chosen = tuple(50 * MS + k * gap_ns for k in range(len(late_us)))
    arrived = tuple(c + 1000 * us for c, us in zip(chosen, late_us, strict=True))
    record = TurnRecord(
        engine="e", session_id="s", turn=0, kind="first", attempt=0, status="ok", prompt_tokens=10, new_tokens=10,
        output_tokens=len(late_us), due_ns=0, sent_ns=0, first_byte_ns=arrived[0], token_ns=arrived,
        end_ns=arrived[-1], verified_by="shim", server_token_ns=chosen,
    )  # fmt: skip
    return replace(record, **changes)


def test_a_steady_way_from_server_to_client_passes_however_long_it_is() -> None:
    check = stamps_agree([turn([200] * 50), turn([200] * 49 + [700])])
    assert (check.ok, check.advice) == (True, "")
    assert check.value == "client later by 0.20 ms at the median, 0.20 ms at p99"
    assert stamps_agree([turn([3000] * 100)]).ok is True


def test_a_hundredth_that_comes_late_is_let_pass_and_more_is_noise() -> None:
    assert stamps_agree([turn([200] * 99 + [9000])]).ok is True
    check = stamps_agree([turn([200] * 90 + [9000] * 10)])
    assert (check.ok, check.severity) == (False, "warning")
    assert "0.20 ms at the median, 9.00 ms at p99" in check.value
    assert "server_token_ns" in check.advice


def test_slow_engines_have_more_room() -> None:
    assert stamps_agree([turn([200] * 90 + [9000] * 10, gap_ns=200 * MS)]).ok is True  # 5 % of a gap are 10 ms


def test_a_token_that_arrives_before_it_was_chosen_is_of_another_clock() -> None:
    check = stamps_agree([turn([200] * 99 + [-400])])
    assert (check.ok, check.severity) == (False, "invalid")
    assert "earlier for 1 tokens" in check.value
    assert "one machine" in check.advice


def test_of_tokens_that_arrive_together_the_last_one_tells() -> None:
    held = turn([20_200, 10_200, 200, 200])  # the first three in one chunk
    assert len(set(held.token_ns)) == 2
    assert stamps_agree([held]).value == "client later by 0.20 ms at the median, 0.20 ms at p99"


def test_without_stamps_nothing_is_claimed() -> None:
    check = stamps_agree([turn([200] * 9, server_token_ns=None)])
    assert check.ok is None
    assert "stamps no tokens" in check.value
    untold = turn([200] * 9)
    assert stamps_agree([replace(untold, token_ns=untold.token_ns[:4])]).ok is None


def test_a_request_a_token_makes_the_run_invalid_and_says_what_to_do() -> None:
    whole, apart = turn([200]), turn([200], verified_by="prompts", server_token_ns=None)
    assert one_request_a_turn([whole]).ok is True
    check = one_request_a_turn([whole, apart])
    assert (check.ok, check.severity) == (False, "invalid")
    assert check.value == "1 of 2 turns in one request a token"
    assert "one_token" in check.advice
