import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.session import Session, Turn, WorkloadError
from workloads.trace_ids import TracedCall, TraceIds

VOCAB = range(100, 4000)
BLOCK = 4


def ids(seed: int = 0, scope: int = 0) -> TraceIds:
    return TraceIds(VOCAB, seed=seed, block_size=BLOCK, scope=scope)


def call(blocks: Sequence[int], input_length: int, output_length: int = 3) -> TracedCall:
    return TracedCall(kind="user", blocks=blocks, input_length=input_length, output_length=output_length)


def prompts(turns: Sequence[Turn]) -> list[tuple[int, ...]]:
    return list(Session(session_id="s", source="s", turns=tuple(turns)).prompts())


def common(a: Sequence[int], b: Sequence[int]) -> int:
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))))


def test_equal_hashes_give_equal_ids_in_every_session() -> None:
    one = ids()
    (a,) = prompts(list(one.turns([call([1, 2, 3], 10)])))
    (b,) = prompts(list(one.turns([call([1, 2, 9], 12)])))
    assert common(a, b) == 2 * BLOCK
    assert (len(a), len(b)) == (10, 12)


def test_other_seeds_and_scopes_give_other_ids() -> None:
    found = [prompts(list(each.turns([call([1, 2], 8)])))[0] for each in (ids(), ids(seed=1), ids(scope=1))]
    assert all(common(a, b) < 2 for a, b in itertools.combinations(found, 2))


def test_all_ids_lie_in_the_vocabulary() -> None:
    turns = list(ids().turns([call([1], 6), call([1, 2, 3], 12)]))
    assert {one in VOCAB for turn in turns for one in (*turn.delta_ids, *turn.output_ids)} == {True}


def test_a_prompt_that_goes_on_holds_the_prompt_and_the_answer_before_it() -> None:
    # The first prompt's last block is partly filled, so its hash is replaced by that of the full block.
    first, second = ids().turns([call([1, 2], 6, 3), call([1, 7, 8], 12)])
    assert second.kept_ids is None
    assert len(second.delta_ids) == 12 - 6 - 3
    assert len(first.delta_ids) == 6


def test_a_hash_that_stood_for_what_was_there_keeps_its_ids_later() -> None:
    one = ids()
    turns = list(one.turns([call([1, 2], 6, 3), call([1, 7, 8], 12)]))
    (again,) = prompts(list(one.turns([call([1, 7, 8], 12)])))
    assert again == prompts(turns)[1]


def test_a_prompt_without_a_hash_for_its_end_ends_in_ids_of_its_own() -> None:
    one = ids()
    (a,), (b,) = (prompts(list(one.turns([call([1], 7)]))) for _ in range(2))
    assert common(a, b) == BLOCK


def test_a_prompt_that_leaves_earlier_blocks_keeps_what_both_begin_with() -> None:
    turns = list(ids().turns([call([1, 2, 3], 12), call([1, 5, 6, 7], 16)]))
    assert turns[1].kept_ids == BLOCK
    assert common(*prompts(turns)) == BLOCK


def test_a_prompt_too_short_for_the_answer_before_it_keeps_none_of_it() -> None:
    turns = list(ids().turns([call([1, 2], 8, 6), call([1, 2, 3], 12)]))
    assert turns[1].kept_ids == 8


def test_a_repeated_prompt_asks_for_its_last_token_again() -> None:
    turns = list(ids().turns([call([1, 2], 8), call([1, 2], 8)]))
    assert (turns[1].kept_ids, len(turns[1].delta_ids)) == (7, 1)
    assert prompts(turns)[0] == prompts(turns)[1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 4), max_size=4), st.integers(1, 20), st.integers(1, 6)),
        min_size=1,
        max_size=5,
    )
)
def test_prompts_have_their_lengths_and_share_at_least_the_blocks_that_their_hashes_do(
    drawn: list[tuple[list[int], int, int]],
) -> None:
    calls = [call(blocks, input_length, output_length) for blocks, input_length, output_length in drawn]
    turns = list(ids().turns(calls))
    whole = prompts(turns)
    assert [len(prompt) for prompt in whole] == [one.input_length for one in calls]
    assert [len(turn.output_ids) for turn in turns] == [one.output_length for one in calls]
    assert all(turn.delta_ids for turn in turns)
    for (a, x), (b, y) in itertools.combinations(list(zip(whole, calls, strict=True)), 2):
        same = common(x.blocks, y.blocks) * BLOCK
        assert common(a, b) >= min(same, len(a), len(b))


@pytest.mark.parametrize(
    ("vocab", "seed", "block_size", "expected"),
    [(range(0), 0, 4, "no plain ids"), (VOCAB, -1, 4, "workload.seed=-1"), (VOCAB, 0, 0, "block_size=0")],
)
def test_impossible_settings_are_refused(vocab: range, seed: int, block_size: int, expected: str) -> None:
    with pytest.raises(WorkloadError, match=expected):
        TraceIds(vocab, seed=seed, block_size=block_size)
