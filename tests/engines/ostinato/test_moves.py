"""Experts that change slots between steps: nothing is named by the table before it is there."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")

import torch
from numbered_store import CPU, EXPERTS, LAYERS, check, numbered_store

from engines.ostinato.background import EVERY, Background
from engines.ostinato.moves import Moves
from engines.ostinato.placement.policy import MemoryBudget, Swap
from engines.ostinato.placement.registry import policy
from engines.ostinato.pool import ExpertPool
from engines.ostinato.spare import room
from engines.ostinato.store import ExpertStore


@pytest.fixture
def store() -> ExpertStore:
    return numbered_store()


def test_a_replaced_expert_is_cold_before_its_slot_is_written(store: ExpertStore) -> None:
    pool = ExpertPool(store, CPU, 2)
    pool.fill([(0, 0), (0, 1)])
    moves = Moves(pool, range(2))
    moves.start([Swap(1, 5, (0, 1))])
    assert pool.table_LE[0, 1] == 0
    assert pool.table_LE[1, 5] == 0, "it enters at the next boundary"
    assert moves.join() == [Swap(1, 5, (0, 1))]
    check(pool)
    assert pool.resident_LE[1, 5]
    assert moves.done == 1


def test_random_moves_keep_table_and_slots_together(store: ExpertStore) -> None:
    draw = np.random.default_rng(0)
    lent = torch.empty(4, store.layout.nbytes, dtype=torch.uint8)
    pool = ExpertPool(store, CPU, 3, lent=lent)
    pool.fill([(0, 0), (1, 1), (2, 2)])
    moves = Moves(pool, pool.lent)
    for _ in range(60):
        cold = np.argwhere(~pool.resident_LE)
        layer, expert = map(int, cold[draw.integers(len(cold))])
        borrowed = [pool.owner(slot) for slot in pool.lent if pool.owner(slot) is not None]
        out = None if pool.free(pool.lent) else borrowed[draw.integers(len(borrowed))]
        moves.start([Swap(layer, expert, out)])
        moves.join()
        check(pool)
        if draw.random() < 0.1:
            moves.clear()
            check(pool)
            assert len(pool.free(pool.lent)) == 4
    assert pool.resident_LE[0, 0]
    assert pool.resident_LE[1, 1]
    assert pool.resident_LE[2, 2]


class _Late:
    """A copy's event that has not come yet."""

    here = False

    def query(self) -> bool:
        return self.here

    def synchronize(self) -> None:
        self.here = True


def test_copies_enter_in_the_order_they_were_begun_and_only_when_they_have_arrived(store: ExpertStore) -> None:
    pool = ExpertPool(store, CPU, 2)
    moves = Moves(pool, range(2))
    moves.start([Swap(0, 0, None), Swap(0, 1, None)])
    first = _Late()
    moves._under_way[0] = replace(moves._under_way[0], arrived=first)
    assert moves.join() == []
    assert len(moves.pending) == 2
    first.here = True
    assert [swap.expert for swap in moves.join()] == [0, 1]
    check(pool)


def test_clearing_waits_for_copies_under_way(store: ExpertStore) -> None:
    pool = ExpertPool(store, CPU, 1)
    moves = Moves(pool, range(1))
    moves.start([Swap(0, 0, None)])
    moves._under_way[0] = replace(moves._under_way[0], arrived=_Late())
    moves.clear()
    assert not moves.pending
    assert not pool.resident_LE.any()


class _Experts:
    """What ``Background`` asks of the engine's experts."""

    def __init__(self, pool: ExpertPool) -> None:
        self.pool = pool


class _Lender:
    """Spare memory of five experts; counts how often it was asked."""

    def __init__(self, nbytes: int) -> None:
        self.blocks = list(torch.empty(5, nbytes, dtype=torch.uint8))
        self.taken, self.times = False, 0

    def take(self) -> list[torch.Tensor]:
        self.taken, self.times = True, self.times + 1
        return self.blocks

    def give_back(self) -> None:
        self.taken = False


def background(
    store: ExpertStore, spec: str, slots: int, lent: int, spare: Any = None
) -> tuple[ExpertPool, Background]:
    size = store.layout.nbytes
    chosen = policy(spec)
    memory = torch.empty(lent, size, dtype=torch.uint8) if chosen.borrow else None
    pool = ExpertPool(store, CPU, slots, lent=memory)
    budget = MemoryBudget(
        layers=range(LAYERS),
        experts=EXPERTS,
        experts_per_token=2,
        expert_bytes=(size,) * LAYERS,
        pool_bytes=slots * size,
    )
    pool.fill([tuple(pair) for pair in np.argwhere(chosen.residents(budget, None)).tolist()][:slots])
    experts: Any = _Experts(pool)
    return pool, Background(experts, chosen, borrow=chosen.borrow, spare=spare)


def test_decode_borrows_slots_for_what_the_cpu_keeps_computing_and_a_prefill_takes_them_back(
    store: ExpertStore,
) -> None:
    pool, made = background(store, "ostinato", 3, 4)
    own = pool.resident_LE.copy()
    cold = [tuple(pair) for pair in np.argwhere(~own)[:4].tolist()]
    uses = np.zeros((LAYERS, EXPERTS), np.int64)
    for expert in cold:
        uses[expert] = 3
    assert not made.idle
    made.at_boundary(uses, uses, EVERY)
    made.at_boundary(uses * 0, uses * 0, EVERY)
    check(pool)
    assert all(pool.slot_LE[expert] >= pool.slots for expert in cold)
    assert (pool.resident_LE & own == own).all(), "own slots stay"
    assert made.borrowed_hits == 0
    made.at_boundary(uses * 0, uses, EVERY)
    assert made.borrowed_hits == 12
    made.before_prefill()
    assert (pool.resident_LE == own).all()
    assert made.borrowed_hits == 0
    check(pool)


def test_a_learning_policy_swaps_its_own_slots(store: ExpertStore) -> None:
    pool, made = background(store, "decay_cache:admit_after=1", 3, 0)
    assert not pool.resident_LE.any()
    draw = np.random.default_rng(2)
    for step in range(30):
        uses = np.zeros((LAYERS, EXPERTS), np.int64)
        uses[draw.integers(LAYERS), draw.integers(EXPERTS)] = 2 + step  # ever higher: somebody must go
        made.at_boundary(uses, uses, EVERY)
        check(pool)
    made.at_boundary(uses * 0, uses * 0, EVERY)
    assert pool.resident_LE.sum() == 3
    assert made.swaps_done > 3


def test_a_policy_may_ask_to_replace_an_expert_that_is_still_on_its_way(store: ExpertStore) -> None:
    pool, made = background(store, "decay_cache:admit_after=1", 1, 0)
    first, second = np.zeros((LAYERS, EXPERTS), np.int64), np.zeros((LAYERS, EXPERTS), np.int64)
    first[0, 1], second[2, 5] = 2, 50
    made.at_boundary(first, first, EVERY)
    late = _Late()
    made._own._under_way[0] = replace(made._own._under_way[0], arrived=late)
    made.at_boundary(second, second, EVERY)
    late.here = True
    for _ in range(3):
        made.at_boundary(second * 0, second, EVERY)
    check(pool)
    assert pool.resident_LE.sum() == 1


def test_spare_memory_is_lent_from_a_decode_s_first_boundary_until_the_next_prefill(store: ExpertStore) -> None:
    lender = _Lender(store.layout.nbytes)
    pool, made = background(store, "ostinato", 3, 2, lender)
    own = pool.resident_LE.copy()
    uses = np.where(own, 0, 3)
    for times in (1, 2):
        for _ in range(4):
            made.at_boundary(uses, uses, EVERY)
            check(pool)
        assert lender.times == times
        assert int(pool.resident_LE.sum()) == 3 + 2 + 5
        made.before_prefill()
        check(pool)
        assert (pool.resident_LE == own).all()
        assert len(pool.lent) == 2
        assert not lender.taken


def test_room_in_the_allocator_s_free_blocks_is_counted_block_by_block() -> None:
    def segment(stream: int, pool: tuple[int, int], *blocks: tuple[int, str]) -> dict[str, Any]:
        parts = [{"size": size, "state": state} for size, state in blocks]
        return {"stream": stream, "segment_pool_id": pool, "blocks": parts}

    segments = [
        segment(0, (0, 0), (25, "inactive"), (100, "active_allocated"), (9, "inactive")),
        segment(0, (0, 0), (10, "inactive")),
        segment(7, (0, 0), (50, "inactive")),
        segment(0, (0, 1), (50, "inactive")),
    ]
    assert room(segments, 10, 0) == 3
