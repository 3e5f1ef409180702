"""Experts and KV cache share a budget as the rules say, and the floor is never given up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.ostinato.errors import SetupError
from engines.ostinato.placement.kv_split import RULES, OnlineResize, Split, SplitBudget, equimarginal, split
from engines.ostinato.placement.paging import Paging

UNHURRIED = settings(deadline=None, max_examples=40)


def budget(**kwargs: int) -> SplitBudget:
    values = {
        "bytes": 100, "cap_bytes": 10, "block_bytes": 2, "block_tokens": 16, "context": 100, "experts": 64,
    } | kwargs  # fmt: skip
    return SplitBudget(**values)


def test_the_floor_admits_every_promised_sequence() -> None:
    assert budget().floor_blocks == 7  # 100 tokens in blocks of 16
    assert budget(sequences=3).floor_blocks == 21


def test_rules_worked_by_hand() -> None:
    assert split(budget(), "fixed") == Split(caps=8, blocks=10)  # the floor of 14 bytes leaves 86
    assert split(budget(), "fixed", fixed_blocks=25) == Split(caps=5, blocks=25)
    assert split(budget(), "50_50") == Split(caps=5, blocks=25)
    assert split(budget(), "mv_wsa") == Split(caps=8, blocks=10)  # nothing known: experts, up to the floor
    # Four slots are enough for these experts, and what KV misses falls until 30 blocks.
    experts = [8.0, 4.0, 2.0, 1.0, 0.0]
    kv = [30.0 - n for n in range(31)]
    assert split(budget(), "mv_wsa", expert_misses=experts, kv_misses=kv) == Split(caps=4, blocks=30)


def test_a_budget_without_a_slot_is_refused() -> None:
    with pytest.raises(SetupError, match="raise --vram-budget or lower --context"):
        split(budget(bytes=20), "mv_wsa")
    with pytest.raises(SetupError, match="set at least 7"):
        split(budget(), "fixed", fixed_blocks=6)


@UNHURRIED
@given(st.lists(st.floats(0, 9), max_size=12), st.lists(st.floats(0, 9), max_size=60))
def test_marginal_value_split_is_the_best_of_all(expert: list[float], kv: list[float]) -> None:
    room = budget()

    def total(caps: int) -> float:
        blocks = (room.bytes - caps * room.cap_bytes) // room.block_bytes
        return (expert[min(caps, len(expert) - 1)] if expert else 0) + (kv[min(blocks, len(kv) - 1)] if kv else 0)

    best = min(total(caps) for caps in range(11))
    assert total(equimarginal(room, np.array(expert), np.array(kv))) == best


@UNHURRIED
@given(
    st.sampled_from(RULES),
    st.integers(30, 5000),
    st.integers(1, 20),
    st.integers(1, 9),
    st.lists(st.floats(0, 9), max_size=9),
)
def test_no_split_exceeds_the_budget_or_starves_kv(
    rule: str, size: int, cap: int, block: int, misses: list[float]
) -> None:
    room = budget(bytes=size, cap_bytes=cap, block_bytes=block, context=32)
    try:
        made = split(room, rule, expert_misses=misses)  # type: ignore[arg-type]
    except SetupError:
        assert size < room.floor_blocks * block + cap
        return
    assert 1 <= made.caps <= room.experts
    assert made.blocks >= room.floor_blocks
    assert made.caps * cap + made.blocks * block <= size


def test_online_resize_gives_experts_what_kv_leaves_unused() -> None:
    control = OnlineResize(budget=budget(), headroom=0.125)
    now = Split(caps=4, blocks=30)
    assert control.resize(now, 8) == Split(caps=8, blocks=10)  # 9 blocks are kept: 82 bytes
    assert control.resize(now, 26) == now  # 30 blocks wanted, 4 slots: nothing to move
    assert control.resize(Split(caps=5, blocks=25), 26) == Split(caps=4, blocks=30)  # KV runs short
    assert control.resize(now, 22) == now  # one slot more is within the hysteresis
    assert control.resize(now, 0).blocks >= budget().floor_blocks


def test_paging_hands_out_split_and_controller() -> None:
    assert Paging(kv_split="50_50").split(budget()) == Split(caps=5, blocks=25)
    assert Paging().controller(budget()) is None
    assert Paging(online=True).controller(budget()) == OnlineResize(budget=budget())
