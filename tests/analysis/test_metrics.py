"""Each formula on a turn small enough to check by hand; all times in milliseconds here."""

from dataclasses import replace

import pytest

from analysis import metrics
from replay.record import TurnRecord

MS = 1_000_000
TURN = TurnRecord(
    engine="fake", session_id="s", turn=1, kind="tool", attempt=0, status="ok",
    prompt_tokens=100, new_tokens=30, output_tokens=5,
    due_ns=1000 * MS, sent_ns=1002 * MS, first_byte_ns=1030 * MS,
    token_ns=tuple(ms * MS for ms in (1052, 1062, 1070, 1084, 1092)), end_ns=1095 * MS,
    cached_tokens=69, prefilled_tokens=31, server_prefill_s=0.049, server_decode_s=0.04,
)  # fmt: skip


def tokens(*ms: int, output_tokens: int | None = None) -> TurnRecord:
    return replace(TURN, token_ns=tuple(t * MS for t in ms), output_tokens=output_tokens or len(ms))


@pytest.mark.parametrize(
    ("metric", "expected_s"),
    [
        ("ttft_s", 0.050),
        ("first_byte_s", 0.028),
        ("decode_s", 0.040),
        ("tpot_s", 0.010),
        ("request_s", 0.090),
        ("stream_s", 0.093),
        ("queue_s", 0.002),
        ("server_prefill_s", 0.049),
        ("server_decode_s", 0.040),
    ],
)
def test_a_turn_worked_by_hand(metric: str, expected_s: float) -> None:
    assert metrics.METRICS[metric](TURN) == pytest.approx(expected_s, abs=1e-12)


def test_tpot_leaves_out_the_tokens_that_came_with_the_first() -> None:
    merged = tokens(1050, 1050, 1050, 1060, 1070)
    assert metrics.first_chunk_tokens(merged) == 3
    assert metrics.tpot_s(merged) == pytest.approx(0.010)  # 20 ms over 5 - 3 tokens


def test_tpot_divides_by_the_recorded_tokens_when_a_later_chunk_holds_several() -> None:
    assert metrics.tpot_s(tokens(1050, 1070, 1070, 1070, 1090)) == pytest.approx(0.010)


@pytest.mark.parametrize("ms", [(1050,), (1050, 1050, 1050)])
def test_tpot_has_no_value_when_no_token_follows_the_first_chunk(ms: tuple[int, ...]) -> None:
    assert metrics.tpot_s(tokens(*ms)) is None


def test_tpot_has_no_value_when_nobody_knows_which_chunk_held_the_tokens() -> None:
    three_arrivals = tokens(1050, 1070, 1090)
    assert metrics.tpot_s(replace(three_arrivals, output_tokens=7)) is None
    assert metrics.ttft_s(three_arrivals) is not None


def test_what_was_not_measured_is_none_and_never_zero() -> None:
    bare = replace(
        TURN, sent_ns=None, first_byte_ns=None, token_ns=(), end_ns=None,
        cached_tokens=None, prefilled_tokens=None, server_prefill_s=None, server_decode_s=None,
    )  # fmt: skip
    assert {name: metric(bare) for name, metric in metrics.METRICS.items()} == dict.fromkeys(metrics.METRICS)


@pytest.mark.parametrize(
    ("turn", "prefilled", "expected"),
    [(1, 31, True), (1, 30, True), (1, 32, False), (1, 100, False), (0, 30, True), (0, 31, False), (0, 12, False)],
)
def test_prefill_is_expected_to_be_the_new_tokens(turn: int, prefilled: int, expected: bool) -> None:
    assert metrics.prefilled_as_expected(replace(TURN, turn=turn, prefilled_tokens=prefilled)) is expected


@pytest.mark.parametrize(
    ("turn", "prefilled", "expected"),
    [(1, 30, True), (1, 46, True), (1, 47, False), (1, 29, False), (0, 30, True), (0, 31, False)],
)
def test_a_cache_of_whole_blocks_may_compute_the_last_one_again(turn: int, prefilled: int, expected: bool) -> None:
    record = replace(TURN, turn=turn, prefilled_tokens=prefilled)
    assert metrics.prefilled_as_expected(record, block_tokens=16) is expected
    metric = metrics.for_blocks(metrics.METRICS["prefilled_as_expected"], 16)
    assert metric(record) is expected


def test_every_metric_states_its_formula() -> None:
    assert all(metric.__doc__ for metric in metrics.METRICS.values())
