"""Layers on several devices, without a GPU: the CPU stands for each, and everything stays exact."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")

import torch
from families import FAMILIES, Tiny, difference

from engines.ostinato.errors import SetupError
from engines.ostinato.experts import whole_LE
from engines.ostinato.placement.registry import POLICIES
from engines.ostinato.planner import model_shape, residency
from engines.ostinato.planner.plan import Gpu, plan
from engines.ostinato.planner.routes import RouteCounts
from engines.ostinato.planner.routes import write as write_routes
from engines.ostinato.shares import Rates

Get = Callable[..., Any]
PROMPT = 90
RATES = Rates(upload_ms=1.0, cpu_tokens=(1.0, 8.0), cpu_ms=(1.0, 1.5))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def on_two(tiny: Get, opened: Get, family: str, **options: Any) -> tuple[Tiny, Any]:
    """A model of four layers on two devices; of three where a fourth makes what to attend to a near-tie."""
    model = tiny(family, num_hidden_layers=3 if family == "deepseek_v4" else 4)
    return model, opened(model.folder, **({"device": "cpu,cpu", "slots": 16} | options))


def follow(engine: Any, path: str) -> None:
    for group in engine.groups:
        group.shares.path, group.shares.rates = path, RATES


def check_exact(engine: Any, model: Tiny) -> None:
    """A prompt, steps, a turn that leaves the text early, one that comes back, and the tokens of a greedy answer."""
    ids, wanted = model.ids, model.wanted
    engine.reset()
    engine.prefill(ids[:PROMPT])
    for i in range(PROMPT, PROMPT + 4):
        assert difference(engine.logits([ids[i]]), wanted[i]) < 1e-5
    engine.prefill([*ids[:40], 5])
    assert engine.prefill(ids[:95]).cached_tokens == 40
    assert difference(engine.logits([ids[95]]), wanted[95]) < 1e-5
    engine.reset()
    first = engine.prefill(ids[:PROMPT]).next_id
    chosen = [first, *engine.decode(first, 8, None)]
    assert chosen == model.logits([*ids[:PROMPT], *chosen[:-1]])[PROMPT - 1 :].argmax(-1).tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_two_devices_give_the_plain_logits_and_tokens(family: str, tiny: Get, opened: Get) -> None:
    model, engine = on_two(tiny, opened, family)
    if family in ("qwen3_moe", "olmoe", "mixtral", "gpt_oss"):
        assert [group.pool.slots for group in engine.groups] == [8, 8]
    layers = [group.layers for group in engine.groups]
    assert [layer for part in layers for layer in part] == list(range(sum(map(len, layers))))
    for path in ("split", "upload", "cooperative"):
        follow(engine, path)
        check_exact(engine, model)
    assert all(group.uses_LE.sum() > 0 for group in engine.groups)
    assert engine.timings()["resident_n"] == 16


@pytest.mark.parametrize(
    "placement",
    [pytest.param(name, marks=() if name in ("lru_cache", "stream") else pytest.mark.slow) for name in POLICIES],
)
def test_every_policy_is_exact_on_two_devices(placement: str, tiny: Get, opened: Get) -> None:
    model, engine = on_two(tiny, opened, "qwen3_moe", placement=placement)
    assert engine.groups[0].policy is not engine.groups[1].policy
    check_exact(engine, model)


def test_borrowed_memory_is_each_devices_own(tiny: Get, opened: Get) -> None:
    _, engine = on_two(tiny, opened, "qwen3_moe")
    draw = random.Random(2)
    vocabulary = [draw.randrange(4096) for _ in range(20)]
    forced = draw.choices(vocabulary, k=120)
    engine.reset()
    engine.prefill([1, 2, 3])
    list(engine.decode(forced[0], len(forced), forced))
    for group, background in zip(engine.groups, engine.backgrounds, strict=True):
        assert background.swaps_done > 0
        assert any(group.pool.owner(slot) is not None for slot in group.pool.lent)
    assert engine.timings()["borrowed_hits_n"] > 0
    engine.prefill([1, 2, 4])
    assert all(group.pool.owner(slot) is None for group in engine.groups for slot in group.pool.lent)


def counts_for(model: Path) -> RouteCounts:
    shape = model_shape.read(model)
    draw = np.random.default_rng(0)
    uses = draw.integers(1, 1000, (len(shape.moe_layers), shape.experts))
    return RouteCounts(
        decode_LE=uses, prefill_LE=uses, decode_steps=500, prefill_tokens=500, experts_per_token=2,
        model_hash=shape.model_hash, workload_hash="",
    )  # fmt: skip


def test_a_plan_says_which_layers_a_device_has_and_who_is_resident(tiny: Get, opened: Get, tmp_path: Path) -> None:
    model = tiny("qwen3_moe", num_hidden_layers=4)
    counts = counts_for(model.folder)
    shape = model_shape.read(model.folder)
    made = plan(
        [Gpu(layers=range(1), pool_bytes=5 * shape.expert_bytes[0]),
         Gpu(layers=range(1, 4), pool_bytes=11 * shape.expert_bytes[0])],
        experts=8, expert_bytes=shape.expert_bytes, counts=counts, model_hash=shape.model_hash,
    )  # fmt: skip
    residency.write(tmp_path / "plan.json", made)
    engine = opened(model.folder, device="cpu,cpu", slots=20, residency=tmp_path / "plan.json")
    assert [group.layers for group in engine.groups] == [(0,), (1, 2, 3)]
    assert [group.pool.slots for group in engine.groups] == [6, 14], "shared as the plan's residents are"
    named = [{*pool.resident, *pool.reserve} for pool in made.pools]
    for group, pool, every in zip(engine.groups, made.pools, named, strict=True):
        resident = {(group.layers[a], int(b)) for a, b in np.argwhere(group.pool.resident_LE)}
        assert len(resident) == min(group.pool.slots, len(every))
        assert resident <= every
        assert len(resident) < len(pool.resident) or resident >= set(pool.resident)
    check_exact(engine, model)
    with pytest.raises(SetupError, match="is a plan for 2 GPUs, the engine has 1"):
        opened(model.folder, slots=20, residency=tmp_path / "plan.json")


def test_recorded_routes_choose_for_each_device_by_itself(tiny: Get, opened: Get, tmp_path: Path) -> None:
    model = tiny("qwen3_moe", num_hidden_layers=4)
    counts = counts_for(model.folder)
    write_routes(tmp_path / "routes.npz", counts)
    engine = opened(model.folder, device="cpu,cpu", slots=12, routes=tmp_path / "routes.npz")
    resident_LE = whole_LE(engine.groups, lambda group: group.pool.resident_LE)
    for half in (slice(0, 2), slice(2, 4)):
        mine = counts.ranking_LE[half]
        assert resident_LE[half].sum() == 6
        assert mine[resident_LE[half]].min() > mine[~resident_LE[half]].max()
    assert all(len(group.early_L) == 2 for group in engine.groups)
    with pytest.raises(SetupError, match=r"--routes is for 4 x 8 experts, the model has 2 x 8"):
        opened(tiny("qwen3_moe").folder, slots=4, routes=tmp_path / "routes.npz")


def test_devices_that_cannot_be_are_refused(tiny: Get, opened: Get) -> None:
    folder = tiny("qwen3_moe").folder
    for device, message in (
        ("cpu,cpu,cpu", "3 devices for 2 layers with experts; name fewer"),
        ("cpu,cuda:0" if torch.cuda.is_available() else "cuda:0,cuda:1", "mixes a CPU|finds no CUDA device"),
        ("tpu0", "is no device; use auto, cpu, cuda:N, or several"),
    ):
        with pytest.raises(SetupError, match=message):
            opened(folder, device=device)
