"""Where experts lie: the store, the slots and their table, what moves between them, and what a pass uploads."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")

import torch
from torch import nn

from engines.ostinato.background import EVERY, Background
from engines.ostinato.expert_layout import ExpertLayout
from engines.ostinato.moves import Moves
from engines.ostinato.placement.policy import Swap
from engines.ostinato.placement.registry import policy
from engines.ostinato.pool import ExpertPool
from engines.ostinato.routes_of_pass import Routes
from engines.ostinato.shares import Rates, Shares
from engines.ostinato.staging import Staging
from engines.ostinato.store import ExpertStore

CPU = torch.device("cpu")
LAYERS, EXPERTS = 3, 8


@pytest.fixture
def store() -> ExpertStore:
    """Every byte of an expert says which one it is."""
    made = ExpertStore(ExpertLayout(32, 16, "float32"), layers=LAYERS, experts=EXPERTS)
    for layer in range(LAYERS):
        for expert in range(EXPERTS):
            made.bytes[layer, expert] = 10 * layer + expert
    return made


def held(pool: ExpertPool, layer: int, expert: int) -> int:
    """What lies where the table says this expert lies."""
    address = int(pool.table_LE[layer, expert])
    slot = pool.address_S.tolist().index(address)
    values = pool.block(slot).unique().tolist()
    assert len(values) == 1
    return int(values[0])


def check(pool: ExpertPool) -> None:
    """Table, slots and contents agree."""
    for layer in range(LAYERS):
        for expert in range(EXPERTS):
            slot = int(pool.slot_LE[layer, expert])
            if slot < 0:
                assert pool.table_LE[layer, expert] == 0
            else:
                assert pool.owner(slot) == (layer, expert)
                assert held(pool, layer, expert) == 10 * layer + expert


def test_a_store_holds_each_part_where_its_layout_says(store: ExpertStore) -> None:
    store.part(1, 2, "down")[:] = 99
    offset, size = store.layout.parts["down"]
    assert (store.bytes[1, 2, offset : offset + size] == 99).all()
    assert (store.bytes[1, 2, :offset] == 12).all()
    assert (store.addresses[1, 2] - store.addresses[0, 0]) == (EXPERTS + 2) * store.layout.nbytes
    assert store.bytes.ctypes.data % (2 << 20) == 0


def test_parts_of_an_expert_do_not_overlap() -> None:
    for dtype in ("float32", "bfloat16", "float16", "mxfp4"):
        for bias in (False, True):
            layout = ExpertLayout(96, 160, dtype, bias)
            end = 0
            for offset, size in layout.parts.values():
                assert offset >= end
                assert offset % 64 == 0
                end = offset + size
            assert end <= layout.nbytes
            assert layout.nbytes % 64 == 0


def test_more_memory_than_there_is_is_refused() -> None:
    from engines.ostinato.errors import SetupError

    with pytest.raises(SetupError, match="of host memory, which can't be had"):
        ExpertStore(ExpertLayout(1 << 14, 1 << 14, "float32"), layers=1 << 16, experts=1 << 16)


def test_a_filled_pool_holds_exactly_the_experts_asked_for(store: ExpertStore) -> None:
    pool = ExpertPool(store, CPU, 5)
    pool.fill([(0, 3), (2, 7), (1, 0)])
    check(pool)
    assert pool.resident_LE.sum() == 3
    assert len(pool.free(range(5))) == 2
    pool.fill([(1, 1)])
    check(pool)
    assert np.argwhere(pool.resident_LE).tolist() == [[1, 1]]


def test_cold_experts_may_have_an_address_of_their_own(store: ExpertStore) -> None:
    pool = ExpertPool(store, CPU, 2, cold_LE=store.addresses)
    pool.fill([(0, 3)])
    assert pool.table_LE[0, 3] != int(store.addresses[0, 3])
    assert pool.table_LE[0, 4] == int(store.addresses[0, 4])


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
    from dataclasses import replace

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
    from dataclasses import replace

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


def background(store: ExpertStore, spec: str, slots: int, lent: int) -> tuple[ExpertPool, Background]:
    from engines.ostinato.placement.policy import MemoryBudget

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
    return pool, Background(experts, chosen, borrow=chosen.borrow)


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
    from dataclasses import replace

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


def test_uploads_come_in_waves_of_half_the_buffer(store: ExpertStore) -> None:
    staging = Staging(store, CPU, 6)
    for count in (1, 3, 4, 8):
        experts = np.arange(count)[::-1].copy()
        staging.start(2, experts)
        seen: list[int] = []
        for wave, addresses in staging.waves():
            assert len(wave) <= 3
            for expert, address in zip(wave.tolist(), addresses.tolist(), strict=True):
                row = (address - staging.blocks.data_ptr()) // store.layout.nbytes
                assert staging.blocks[row].unique().tolist() == [20 + expert]
                seen.append(expert)
        assert seen == experts.tolist()


def test_routes_are_sorted_by_expert_and_then_by_token() -> None:
    ids = np.array([[3, 1], [1, 0], [3, 2]])
    routes = Routes(ids, 5)
    assert routes.used.tolist() == [0, 1, 2, 3]
    assert routes.counts_E.tolist() == [1, 2, 1, 2, 0]
    assert routes.of(3).tolist() == [0, 4]
    chosen, starts = routes.gather(np.array([3, 1]))
    assert chosen.tolist() == [0, 4, 1, 2]
    assert starts.tolist() == [0, 2, 4]
    assert (ids.reshape(-1)[chosen] == [3, 3, 1, 1]).all()
    empty, none = routes.gather(np.zeros(0, np.int64))
    assert len(empty) == 0
    assert none.tolist() == [0]


RATES = Rates(upload_ms=1.0, cpu_tokens=(1.0, 10.0), cpu_ms=(1.0, 4.0))


def test_cpu_time_is_interpolated_and_then_proportional() -> None:
    assert RATES.cpu(np.array([1, 10, 20])).tolist() == [1.0, 4.0, 8.0]
    assert 1.0 < RATES.cpu(np.array([5]))[0] < 4.0


def test_each_path_shares_the_cold_experts_its_way() -> None:
    cold, counts = np.arange(6), np.array([1, 9, 2, 20, 1, 9])
    order = [3, 1, 5, 2, 0, 4]
    up, cpu = Shares("split", RATES).split(cold, counts, "upload")
    assert (len(up), cpu.tolist()) == (0, order)
    up, cpu = Shares("upload", RATES).split(cold, counts, "split")
    assert (up.tolist(), len(cpu)) == (order, 0)
    up, cpu = Shares("auto", RATES).split(cold, counts, "cooperative")
    assert [*up.tolist(), *cpu.tolist()] == order
    # Nobody could end earlier: moving one expert across makes the slower side slower or no faster.
    cost = [max(n * 1.0, RATES.cpu(counts[order][n:]).sum()) for n in range(7)]
    assert cost[len(up)] == min(cost)
    assert 0 < len(up) < 6


def test_the_activation_of_a_family_is_found_by_trying_it() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    from engines.ostinato.packing import activation_of

    config = AutoConfig.for_model(
        "gpt_oss", vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, num_local_experts=2, num_experts_per_tok=1,
    )  # fmt: skip
    with torch.device("meta"):
        experts: nn.Module = AutoModelForCausalLM.from_config(config).model.layers[0].mlp.experts
    found = activation_of(experts, 32)
    assert (found.kind, round(found.alpha, 3), found.limit) == ("swiglu_oai", 1.702, 7.0)


@pytest.mark.parametrize("per_layer", [False, True])
def test_fetched_experts_take_the_slots_that_were_used_longest_ago(store: ExpertStore, per_layer: bool) -> None:
    from engines.ostinato.lru import Lru

    pool = ExpertPool(store, CPU, 6)
    lru = Lru(pool, per_layer=per_layer)
    assert lru.fits(0, 2 if per_layer else 6)
    assert not lru.fits(0, 3 if per_layer else 7)
    draw = np.random.default_rng(5)
    last: dict[tuple[int, int], int] = {}

    def resident() -> set[tuple[int, int]]:
        return {(int(a), int(b)) for a, b in np.argwhere(pool.resident_LE)}

    for clock in range(200):
        layer, chosen = int(draw.integers(LAYERS)), draw.integers(EXPERTS, size=2).tolist()
        wanted, before = {(layer, expert) for expert in chosen}, resident()
        assert lru.bring(layer, chosen) == len(wanted - before)
        check(pool)
        after = resident()
        assert wanted <= after
        rivals = [last[pair] for pair in after - wanted if not per_layer or pair[0] == layer]
        for gone in before - after:
            assert not per_layer or gone[0] == layer
            assert last[gone] <= min(rivals, default=clock)
        last |= dict.fromkeys(wanted, clock)
    assert len(resident()) == 6
