"""Orders worked out by hand, and what every order must keep."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.base import EngineError
from replay.order import OrderSettings, check, ordered_runs, ordered_sessions
from workloads.session import Session, Turn

TURN = Turn(kind="first", delta_ids=(1,), output_ids=(2,))
SESSIONS = tuple(Session(session_id=f"s{n}", source="test", turns=(TURN,)) for n in range(8))


def runs(engines: str, repeats: int) -> tuple[list[str], list[int]]:
    """As Hydra lists ``engine=… repeat=…``: all repeats of the first engine, then of the next."""
    pairs = list(product(engines, range(repeats)))
    return [f"{engine}{repeat}" for engine, repeat in pairs], [repeat for _, repeat in pairs]


@pytest.mark.parametrize(
    ("engines", "repeats", "expected"),
    [
        ("AB", 2, "A0 B0 B1 A1"),
        ("AB", 3, "A0 B0 B1 A1 A2 B2"),
        ("ABC", 2, "A0 B0 C0 C1 B1 A1"),
        ("AB", 1, "A0 B0"),
    ],
)
def test_interleaved_engines_turn_round_each_repeat(engines: str, repeats: int, expected: str) -> None:
    assert ordered_runs(*runs(engines, repeats), OrderSettings(engines="interleaved")) == expected.split()


def test_over_two_interleaved_repeats_every_engine_stands_at_the_same_place_on_average() -> None:
    found = ordered_runs(*runs("ABCD", 2), OrderSettings(engines="interleaved"))
    assert {sum(found.index(f"{engine}{repeat}") for repeat in (0, 1)) for engine in "ABCD"} == {7}


def test_the_given_order_is_the_commands() -> None:
    assert ordered_runs(*runs("AB", 2), OrderSettings()) == ["A0", "A1", "B0", "B1"]


@given(st.integers(0, 50), st.sampled_from(["shuffled", "interleaved", "given"]))
def test_no_order_loses_a_run_or_mixes_repeats_unasked(seed: int, order: str) -> None:
    found = ordered_runs(*runs("ABC", 4), OrderSettings(engines=order, seed=seed))
    assert sorted(found) == sorted(runs("ABC", 4)[0])
    if order != "given":
        assert [run[1] for run in found] == sorted(run[1] for run in found)
    assert found == ordered_runs(*runs("ABC", 4), OrderSettings(engines=order, seed=seed))


def test_shuffled_engines_do_not_stay_as_they_were() -> None:
    found = {tuple(ordered_runs(*runs("ABC", 1), OrderSettings(engines="shuffled", seed=n))) for n in range(20)}
    assert len(found) > 3


def test_shuffled_sessions_are_alike_on_every_engine_and_unlike_in_every_repeat() -> None:
    order = OrderSettings(sessions="shuffled", seed=3)
    first, again, other = (ordered_sessions(SESSIONS, order, repeat=repeat) for repeat in (0, 0, 1))
    assert first == again
    assert set(first) == set(other) == set(SESSIONS)
    assert len({first, other, SESSIONS}) == 3
    assert first != ordered_sessions(SESSIONS, OrderSettings(sessions="shuffled", seed=4), repeat=0)


def test_given_sessions_stay_as_they_are() -> None:
    assert ordered_sessions(SESSIONS, OrderSettings(), repeat=5) == SESSIONS


@pytest.mark.parametrize("name", ["sessions", "engines"])
def test_an_unknown_order_is_refused(name: str) -> None:
    with pytest.raises(EngineError, match=rf"order\.{name}=chaos .* given, shuffled"):
        check(OrderSettings(**{name: "chaos"}))
