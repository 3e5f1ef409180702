from dataclasses import replace
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.session import WorkloadError
from workloads.synthetic import SyntheticSpec, TokenCount, generate

SPEC = SyntheticSpec(vocab_size=4096, first_id=13)


def test_sessions_have_the_turns_asked_for_and_begin_with_a_first_turn() -> None:
    sessions = list(generate(replace(SPEC, sessions=3, turns=5)))
    assert [len(session.turns) for session in sessions] == [5, 5, 5]
    for session in sessions:
        assert [turn.kind == "first" for turn in session.turns] == [True, False, False, False, False]


def test_a_session_is_the_same_however_many_are_drawn() -> None:
    assert list(generate(replace(SPEC, sessions=5)))[:2] == list(generate(replace(SPEC, sessions=2)))


def test_sessions_differ_from_each_other_and_from_another_seeds() -> None:
    one, other = generate(replace(SPEC, sessions=2))
    assert one.turns != other.turns
    assert next(generate(replace(SPEC, seed=1))).turns != one.turns


def test_default_sessions_are_short_enough_for_a_small_machine() -> None:
    sessions = list(generate(replace(SPEC, sessions=100)))
    turns = [turn for session in sessions for turn in session.turns]
    contexts = sorted(session.longest_context for session in sessions)
    tools = [len(turn.delta_ids) for turn in turns if turn.kind == "tool"]
    assert 28 <= median(len(turn.output_ids) for turn in turns) <= 36
    assert contexts[5] > 1_600
    assert contexts[94] < 4_200
    assert min(tools) == 20
    assert 1_200 < max(tools) <= 2_500
    assert 0.7 < len(tools) / (len(turns) - len(sessions)) < 0.8


def test_a_length_without_spread_is_its_median() -> None:
    exact = TokenCount(median=7, sigma=0, low=1, high=9)
    (session,) = generate(replace(SPEC, sessions=1, turns=4, first=exact, tool=exact, user=exact, output=exact))
    assert {len(ids) for turn in session.turns for ids in (turn.delta_ids, turn.output_ids)} == {7}


@settings(max_examples=30, deadline=None)
@given(
    first_id=st.integers(0, 50),
    ids=st.integers(1, 50),
    turns=st.integers(1, 4),
    tool_share=st.floats(0, 1),
    seed=st.integers(0),
)
def test_ids_stay_within_the_vocabulary_and_outputs_are_never_empty(
    first_id: int, ids: int, turns: int, tool_share: float, seed: int
) -> None:
    spec = SyntheticSpec(
        sessions=2, turns=turns, seed=seed, first_id=first_id, vocab_size=first_id + ids, tool_share=tool_share
    )
    for session in generate(spec):
        for turn in session.turns:
            assert turn.output_ids
            assert set(turn.delta_ids + turn.output_ids) <= set(range(first_id, first_id + ids))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sessions": 0}, r"workload\.sessions=0: set it to 1 or more"),
        ({"turns": -1}, r"workload\.turns=-1: set it to 1 or more"),
        ({"seed": -1}, r"workload\.seed=-1: set it to 0 or more"),
        ({"first_id": 4096}, "no ids between 4096 and the vocabulary's size 4096"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        list(generate(replace(SPEC, **change)))
