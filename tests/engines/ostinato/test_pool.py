"""Where experts lie: the store, the slots and their table, and what a pass uploads into staging."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")

import torch
from numbered_store import CPU, EXPERTS, LAYERS, check, numbered_store

from engines.ostinato.errors import SetupError
from engines.ostinato.expert_layout import ExpertLayout
from engines.ostinato.lru import Lru
from engines.ostinato.packing import activation_of
from engines.ostinato.pool import ExpertPool
from engines.ostinato.staging import Staging
from engines.ostinato.store import ExpertStore


@pytest.fixture
def store() -> ExpertStore:
    return numbered_store()


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


def test_the_activation_of_a_family_is_found_by_trying_it() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "gpt_oss", vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, num_local_experts=2, num_experts_per_tok=1,
    )  # fmt: skip
    with torch.device("meta"):
        experts = AutoModelForCausalLM.from_config(config).model.layers[0].mlp.experts
    found = activation_of(experts, 32)
    assert (found.kind, round(found.alpha, 3), found.limit) == ("swiglu_oai", 1.702, 7.0)


@pytest.mark.parametrize("per_layer", [False, True])
def test_fetched_experts_take_the_slots_that_were_used_longest_ago(store: ExpertStore, per_layer: bool) -> None:
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
