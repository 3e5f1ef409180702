"""Paging moves memory between expert slots and KV cache at drained barriers, and no token changes."""

import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")

from families import Tiny

from engines.ostinato.assembly import Options, open_engine
from engines.ostinato.errors import SetupError
from engines.ostinato.placement.kv_split import Split
from engines.ostinato.resizing import BLOCK_TOKENS

Get = Callable[..., Any]
CONTEXT = 512
FLOOR = CONTEXT // BLOCK_TOKENS
SLOTS = 16
"""All experts of the tiny model: eight a layer."""


def chosen(engine: Any, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens after a prompt."""
    first = engine.prefill(prompt).next_id
    return [first, *engine.decode(first, count - 1, None)]


def rooms(engine: Any) -> set[int]:
    """Tokens that the buffers of each layer's keys have room for."""
    return {layer._keys_GNW.shape[1] for layer in engine._forward.layers}


def usable(engine: Any) -> list[int]:
    """Slots that each layer may use."""
    lru = engine.experts.lru
    return [max(n for n in range(SLOTS + 1) if lru.fits(layer, n)) for layer in range(len(lru.scopes))]


@pytest.fixture
def split(tiny: Get, opened: Get) -> Callable[[str], tuple[Tiny, Any]]:
    def get(settings: str) -> tuple[Tiny, Any]:
        model = tiny("qwen3_moe")
        return model, opened(model.folder, context=CONTEXT, slots=SLOTS, placement=f"paging:{settings}")

    return get


def test_the_boundary_moves_both_ways_and_every_token_stays(split: Any) -> None:
    model, engine = split("kv_split=fixed,kv_blocks=68,online=true,headroom=1.0")
    resizing, draw = engine.resizing, random.Random(5)
    start = resizing.now
    assert start.blocks >= 68
    assert usable(engine) == [start.caps, start.caps]
    assert 2 <= start.caps < 8
    short = model.ids[:40]
    seen = [start]

    def answer(prompt: list[int], count: int) -> list[int]:
        tokens = chosen(engine, prompt, count)
        text = [*prompt, *tokens]
        assert tokens == model.logits(text[:-1])[len(prompt) - 1 :].argmax(-1).tolist()
        now = resizing.now
        assert usable(engine) == [now.caps, now.caps]
        assert rooms(engine) == {now.blocks * BLOCK_TOKENS}
        assert now.blocks >= FLOOR, "what was promised can be admitted"
        assert (
            now.caps * resizing.budget.cap_bytes + now.blocks * resizing.budget.block_bytes <= resizing.budget.bytes
        )
        assert int(engine.experts.pool.resident_LE.sum(1).max()) <= now.caps
        seen.append(now)
        return text

    text = answer(short, 8)  # little is held: experts get what the floor leaves
    assert seen[-1].caps == 8
    assert engine.timings()["slots_a_layer_n"] == 8
    full = [*text, *draw.choices(range(4096), k=CONTEXT - 20 - len(text))]
    answer(full, 16)  # a KV cache that was nearly full …
    answer(full[:100], 8)  # … gets headroom at the next barrier, from the slots, and keeps what is shared
    assert seen[-1].caps < seen[-2].caps
    assert seen[-1].blocks > seen[-2].blocks
    assert engine.timings()["cpu_experts_n"] == 0, "paging computes nothing on the CPU"
    answer(short, 8)
    assert seen[-1].caps == 8, "and gives it back"
    assert resizing.moves == 3


def test_halves_stay_halves_where_nothing_is_online(split: Any) -> None:
    model, engine = split("kv_split=50_50")
    budget, now = engine.resizing.budget, engine.resizing.now
    assert now == Split(now.caps, (budget.bytes - now.caps * budget.cap_bytes) // budget.block_bytes)
    for prompt in (model.ids[:50], model.ids[10:90]):
        chosen(engine, prompt, 4)
        assert engine.resizing.now == now
        assert rooms(engine) == {now.blocks * BLOCK_TOKENS}


def test_a_controller_never_leaves_fewer_slots_than_a_token_needs(split: Any) -> None:
    _, engine = split("online=true,headroom=3.0")
    engine.resizing.at_barrier(peak_tokens=CONTEXT, held=0)
    assert min(usable(engine)) >= 2


def test_plain_paging_splits_nothing(split: Any) -> None:
    _, engine = split("headroom=0.5")
    assert engine.resizing is None
    assert "kv_blocks_n" not in engine.timings()


def test_fewer_blocks_than_the_context_needs_are_refused(split: Any) -> None:
    with pytest.raises(SetupError, match=f"kv_blocks=8 can't admit {CONTEXT} tokens; set at least {FLOOR}"):
        split("kv_split=fixed,kv_blocks=8")


def test_a_cache_that_is_not_ours_can_not_be_split(tiny: Get) -> None:
    options = Options(
        model=tiny("deepseek_v4").folder, context=128, device="cpu", threads=1, slots=24,
        placement="paging:online=true",
    )  # fmt: skip
    with pytest.raises(SetupError, match="which this model does not have; leave both settings out"):
        open_engine(options)
