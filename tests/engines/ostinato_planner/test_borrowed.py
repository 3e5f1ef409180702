"""Borrowed memory takes what the CPU keeps computing, gives way reluctantly, and is returned before a prefill."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.ostinato.placement.borrowed import Borrowed, best_swaps
from engines.ostinato.placement.policy import Swap

UNHURRIED = settings(deadline=None, max_examples=40)


NOBODY = np.zeros((2, 3), bool)


def borrowed(room: int = 1, **kwargs: float) -> Borrowed:
    settings = {"half_life": 1.0, "threshold": 1.5, "margin": 1.5, "most": 1} | kwargs
    return Borrowed(layers=range(2), sizes=np.array([1, 1]), experts=3, room=room, **settings)  # type: ignore[arg-type]


def uses(*named: tuple[int, int, int]) -> np.ndarray:
    counts = np.zeros((2, 3), int)
    for layer, expert, times in named:
        counts[layer, expert] = times
    return counts


def test_an_expert_is_copied_once_it_was_used_enough_lately() -> None:
    lent = borrowed()
    assert lent.after_step(uses((0, 1, 1)), NOBODY) == []  # score 1
    assert lent.after_step(uses((0, 1, 1)), NOBODY) == [Swap(0, 1, None)]  # 0.5 + 1


def test_a_copy_counts_when_it_has_joined() -> None:
    lent = borrowed()
    (swap,) = lent.after_step(uses((0, 1, 2)), NOBODY)
    assert not lent.present_LE.any()
    assert lent.after_step(uses((1, 0, 9)), NOBODY) == []  # one copy at a time, and its slot is taken
    lent.joined(swap)
    assert np.argwhere(lent.present_LE).tolist() == [[0, 1]]


def test_a_newcomer_must_score_clearly_higher() -> None:
    lent = borrowed(half_life=1e9)
    lent.joined(lent.after_step(uses((0, 1, 4)), NOBODY)[0])
    assert lent.after_step(uses((1, 2, 5)), NOBODY) == []  # 5 is not above 1.5 · 4
    assert lent.after_step(uses((1, 2, 2)), NOBODY) == [Swap(1, 2, (0, 1))]
    assert not lent.present_LE.any()


def test_residents_are_never_borrowed() -> None:
    resident = NOBODY.copy()
    resident[0, 1] = True
    assert borrowed().after_step(uses((0, 1, 9)), resident) == []


def test_a_prefill_gets_everything_back() -> None:
    lent = borrowed(room=3, most=3)
    for swap in lent.after_step(uses((0, 0, 3), (1, 1, 3)), NOBODY):
        lent.joined(swap)
    lent.after_step(uses((1, 2, 3)), NOBODY)
    lent.clear()
    assert not lent.present_LE.any()
    assert lent.after_step(uses(), NOBODY) == []
    assert lent.after_step(uses((0, 0, 2), (0, 1, 2), (0, 2, 2)), NOBODY) == [
        Swap(0, 0, None), Swap(0, 1, None), Swap(0, 2, None),
    ]  # fmt: skip


def test_replacement_keeps_to_a_byte_size() -> None:
    score = np.array([[1.0, 9.0], [5.0, 0.0]])
    held = np.array([[True, False], [False, True]])
    sizes = np.array([2, 1])
    swaps = best_swaps(score, held, range(2), sizes=sizes, room=3, threshold=2, margin=1.5, most=5)
    assert swaps == [Swap(0, 1, (0, 0)), Swap(1, 0, (1, 1))]


@UNHURRIED
@given(st.integers(0, 2**32 - 1), st.integers(0, 12), st.integers(1, 4))
def test_slots_are_never_exceeded_or_shared(seed: int, room: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    lent = Borrowed(layers=range(1, 3), sizes=np.array([1, 2, 1]), experts=4, room=room, most=most)
    resident = rng.random((3, 4)) < 0.3
    under_way: list[Swap] = []
    for _ in range(25):
        for swap in lent.after_step(rng.integers(0, 3, (3, 4)) * ~resident, resident):
            assert not resident[swap.layer, swap.expert]
            under_way.append(swap)
        assert len(under_way) <= most
        taken = lent.present_LE.copy()
        for swap in under_way:
            assert not taken[swap.layer, swap.expert]
            taken[swap.layer, swap.expert] = True
        assert not taken[0].any()
        assert (taken.sum(1) * lent.sizes).sum() <= room
        while under_way and rng.random() < 0.6:
            lent.joined(under_way.pop(0))
