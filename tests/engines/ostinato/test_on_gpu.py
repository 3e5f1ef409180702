"""The engine on a real GPU: the same logits, captured steps, and what happens when the CPU doesn't answer."""

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")

import torch
from families import FAMILIES, Tiny, difference

from engines.ostinato.backend import BackendError
from engines.ostinato.placement.registry import POLICIES
from engines.ostinato.pool import ExpertPool
from engines.synthetic_moe import SyntheticMoe, write
from workloads.sample_paths import TOKENIZER

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device here"),
]
Get = Callable[..., Any]
PROMPT = 90


def place(engine: Any, share: float) -> None:
    """Make a random part of each group's experts resident."""
    for group in engine.groups:
        every = [(int(layer), int(expert)) for layer, expert in np.ndindex(group.pool.slot_LE.shape)]
        group.pool.fill(random.Random(1).sample(every, min(group.pool.slots, round(share * len(every)))))


def steps_of(engine: Any, ids: list[int]) -> torch.Tensor:
    """Logits after each of the text's tokens from PROMPT on, one by one."""
    engine.reset()
    engine.prefill(ids[:PROMPT])
    return torch.stack([engine.logits([token]).clone() for token in ids[PROMPT:]]).cpu()


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_gives_the_plain_logits_whatever_lies_where(family: str, tiny: Get, on_gpu: Get) -> None:
    model = tiny(family)
    engine = on_gpu(model.folder, slots=64, dtype="float32")
    for share in (0.0, 0.5, 1.0):
        place(engine, share)
        for path in ("split", "upload", "cooperative"):
            engine.experts.shares.path = path
            assert difference(steps_of(engine, model.ids), model.wanted[PROMPT:]) < 1e-5, (share, path)


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "deepseek_v3", "glm4_moe"])
def test_bfloat16_is_as_near_to_float32_as_plain_bfloat16(family: str, tiny: Get, on_gpu: Get) -> None:
    # With every expert chosen there is no near-tie that bfloat16 could decide otherwise.
    model = tiny(
        family, num_experts_per_tok=8, **({"n_group": 1, "topk_group": 1} if family == "deepseek_v3" else {})
    )
    plain = model.plain(torch.bfloat16).cuda()
    with torch.inference_mode():
        rounding = difference(plain(torch.tensor([model.ids], device="cuda")).logits[0].cpu(), model.wanted)
    engine = on_gpu(model.folder, slots=64, dtype="bfloat16")
    for share in (0.0, 0.5, 1.0):
        place(engine, share)
        assert difference(steps_of(engine, model.ids), model.wanted[PROMPT:]) < 2 * rounding


def test_mxfp4_experts_give_what_their_dequantised_weights_give(tiny: Get, on_gpu: Get, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="the model is written with the gguf package")
    from mxfp4_writing import as_mxfp4, dequantised

    model = tiny("gpt_oss", num_experts_per_tok=8)
    folder = as_mxfp4(model, tmp_path / "mxfp4")
    plain = model.plain()
    plain.load_state_dict(dequantised(folder), strict=False)
    with torch.inference_mode():
        wanted = plain(torch.tensor([model.ids])).logits[0]
        rounding = difference(plain.to(torch.bfloat16)(torch.tensor([model.ids])).logits[0], wanted)
    engine = on_gpu(folder, slots=64, dtype="bfloat16")
    assert engine.experts.pool.store.layout.dtype == "mxfp4"
    for share in (0.0, 0.5, 1.0):
        place(engine, share)
        for path in ("split", "upload"):
            engine.experts.shares.path = path
            assert difference(steps_of(engine, model.ids), wanted[PROMPT:]) < 2 * rounding, (share, path)
    place(engine, 0.5)
    graph_equals_eager(engine, model)


def graph_equals_eager(engine: Any, model: Tiny, count: int = 40) -> None:
    """Captured steps choose the same tokens as steps launched one by one."""
    engine.reset()
    first = engine.prefill(model.ids[:PROMPT]).next_id
    captured = list(engine.decode(first, count, None))
    engine.reset()
    token = engine.prefill(model.ids[:PROMPT]).next_id
    assert token == first
    eager = []
    for _ in range(count):
        token = engine.step(token)
        eager.append(token)
    assert captured == eager


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("placement", POLICIES)
def test_every_policy_chooses_the_same_tokens_captured_or_not(
    placement: str, dtype: str, tiny: Get, on_gpu: Get
) -> None:
    model = tiny("qwen3_moe")
    engine = on_gpu(model.folder, slots=6, dtype=dtype, placement=placement)
    engine.experts.shares.path = "split"
    graph_equals_eager(engine, model)
    if dtype == "float32":
        ids = model.ids[:PROMPT]
        engine.reset()
        first = engine.prefill(ids).next_id
        chosen = [first, *engine.decode(first, 20, None)]
        assert chosen == model.logits([*ids, *chosen[:-1]])[PROMPT - 1 :].argmax(-1).tolist()


def test_slots_that_paging_shuts_and_opens_leave_captured_steps_as_they_were(tiny: Get, on_gpu: Get) -> None:
    model = tiny("qwen3_moe")
    engine = on_gpu(
        model.folder, slots=16, dtype="float32", context=512,
        placement="paging:kv_split=fixed,kv_blocks=68,online=true,headroom=1.0",
    )  # fmt: skip
    budget = engine.resizing.budget
    caps = {engine.resizing.now.caps}
    graph_equals_eager(engine, model)
    caps.add(engine.resizing.now.caps)
    for peak in (512, 1, 512):
        engine.reset()
        engine.resizing.at_barrier(peak_tokens=peak, held=0)
        assert engine.resizing.now.blocks >= budget.floor_blocks
        caps.add(engine.resizing.now.caps)
        # The next prefill is a barrier too: the same peak again, so that the boundary stays for these steps.
        engine.resizing.at_barrier = lambda **_tokens: None
        graph_equals_eager(engine, model)
        del engine.resizing.at_barrier
        ids = model.ids[:PROMPT]
        engine.reset()
        first = engine.prefill(ids).next_id
        chosen = [first, *engine.decode(first, 20, None)]
        assert chosen == model.logits([*ids, *chosen[:-1]])[PROMPT - 1 :].argmax(-1).tolist()
    assert len(caps) > 1, "the boundary moved"


@pytest.mark.parametrize("lean", ["on", "off", "pdl"])
@pytest.mark.parametrize(
    ("family", "found"), [("qwen3_moe", 2), ("gpt_oss", 2), ("mixtral", 2), ("olmoe", 0), ("deepseek_v3", 0)]
)
def test_lean_layers_choose_the_plain_tokens(family: str, found: int, lean: str, tiny: Get, on_gpu: Get) -> None:
    model = tiny(family)
    engine = on_gpu(model.folder, slots=6, dtype="float32", lean=lean)
    modules = engine._forward.model.modules() if hasattr(engine._forward, "model") else ()
    assert sum(hasattr(module, "ostinato_lean") for module in modules) == (0 if lean == "off" else found)
    graph_equals_eager(engine, model)
    ids = model.ids[:PROMPT]
    engine.reset()
    chosen = [engine.prefill(ids).next_id]
    chosen += engine.decode(chosen[0], 20, None)
    assert chosen == model.logits([*ids, *chosen[:-1]])[PROMPT - 1 :].argmax(-1).tolist()


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_captured_steps_with_borrowed_memory_equal_synchronous_ones_bit_by_bit(
    family: str, dtype: str, tiny: Get, on_gpu: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engines.ostinato import decode_graph

    # One step at a time, so that its logits and the placement it ran under can be read before the next one begins.
    monkeypatch.setattr(decode_graph, "_AHEAD", 1)
    many = {"num_experts": 32} if family == "qwen3_moe" else {"num_local_experts": 32}
    model = tiny(family, **many, max_position_embeddings=4096)
    engine = on_gpu(model.folder, slots=8, dtype=dtype, context=4096)
    engine.experts.shares.path = "split"
    draw = random.Random(4)
    vocabulary = [draw.randrange(4096) for _ in range(40)]  # few tokens, so that the same experts come back
    forced = draw.choices(vocabulary, k=2000)
    engine.reset()
    engine.prefill(model.ids[:PROMPT])
    captured, residents = [], []
    for _ in engine.graph.run(forced[0], len(forced), [*forced[1:], 0], PROMPT):
        captured.append(engine.graph.logits_V.clone())
        residents.append(engine.experts.pool.resident_LE.copy())
    assert engine.background.borrowed_hits >= 50
    assert any((one != other).any() for one, other in pairwise(residents))

    store, device = engine.experts.pool.store, engine.experts.pool.device
    every = [(int(layer), int(expert)) for layer, expert in np.ndindex(store.layers, store.experts)]
    pool = ExpertPool(store, device, len(every))
    pool.fill(every)
    whole = pool.slot_LE.copy()
    engine.experts.pool = pool
    del engine.cached_ids[PROMPT:]
    for token, resident_LE, wanted in zip(forced, residents, captured, strict=True):
        pool.slot_LE = np.where(resident_LE, whole, -1)
        pool.publish()
        assert torch.equal(engine.logits([token]), wanted)


def test_a_cpu_that_does_not_answer_is_an_error_and_the_next_request_is_as_before(tiny: Get, on_gpu: Get) -> None:
    model = tiny("qwen3_moe")
    engine = on_gpu(model.folder, slots=4, dtype="float32")

    def answer() -> list[int]:
        engine.reset()
        engine.prefill(model.ids[:PROMPT])
        return list(engine.decode(5, 30, None))

    engine.experts.shares.path = "split"
    before = answer()
    engine.graph.service.stall(True)
    with pytest.raises(BackendError, match="the CPU pool did not answer within"):
        answer()
    engine.graph.service.stall(False)
    assert answer() == before


def test_a_request_that_is_abandoned_leaves_the_engine_ready(tiny: Get, on_gpu: Get) -> None:
    model = tiny("qwen3_moe")
    engine = on_gpu(model.folder, slots=4, dtype="float32")
    engine.experts.shares.path = "split"
    engine.reset()
    engine.prefill(model.ids[:PROMPT])
    steps = engine.decode(5, 1000, None)
    for _ in range(10):
        next(steps)
    steps.close()
    engine.prefill(model.ids[:PROMPT])
    again = list(engine.decode(5, 20, None))
    engine.reset()
    engine.prefill(model.ids[:PROMPT])
    assert list(engine.decode(5, 20, None)) == again


def test_a_thousand_turns_do_not_grow_the_gpu_memory(tiny: Get, on_gpu: Get) -> None:
    model = tiny("qwen3_moe")
    engine = on_gpu(model.folder, slots=8, dtype="bfloat16")
    draw = random.Random(3)
    history: list[int] = []
    held = {}
    for turn in range(1, 1001):
        if len(history) > 1800:
            del history[draw.randrange(20, 200) :]
        history += draw.choices(range(4096), k=draw.randrange(1, 40))
        first = engine.prefill(history).next_id
        history += [first, *engine.decode(first, 3, None)]
        held[turn] = torch.cuda.memory_reserved()
    assert held[1000] <= held[200]


def test_prompts_of_many_sizes_stay_within_the_budget(on_gpu: Get, tmp_path: Path) -> None:
    wide = SyntheticMoe(layers=2, experts=64, experts_per_token=8, hidden=2048, expert_width=768, heads=32)
    write(wide, tokenizer=TOKENIZER, safetensors=tmp_path / "model", gguf=None)
    budget = 3 << 30
    engine = on_gpu(tmp_path / "model", context=16384, chunk=8192, vram_budget=budget)
    assert 0 < engine.experts.pool.slots < wide.layers * wide.experts, "the budget is no bound here: change it"
    draw, used, held = random.Random(4), [], []
    for _ in range(100):
        kept = draw.randrange(len(held) + 1) if len(held) < 12000 else 0
        held = held[:kept] + draw.choices(range(4096), k=round(2 ** draw.uniform(0, 12)))
        first = engine.prefill(held).next_id
        held += [first, *engine.decode(first, 3, None)]
        free, total = torch.cuda.mem_get_info()
        used.append(total - free)
    assert max(used) <= budget, [round(n / 2**20) for n in used]


def test_a_calibration_bounds_the_step_and_makes_a_restarted_engine_share_as_before(
    tiny: Get, on_gpu: Get, tmp_path: Path
) -> None:
    from engines.ostinato import calibrate
    from engines.ostinato.planner import calibration, model_shape

    model = tiny("qwen3_moe", num_experts=32)
    engine = on_gpu(model.folder, slots=16, dtype="bfloat16")
    table_LE = engine.experts.pool.table_LE.clone()
    found = calibrate.measure(engine, model_shape.read(model.folder), lambda _text: None)
    assert torch.equal(engine.experts.pool.table_LE, table_LE), "the tables are as they were"
    calibration.write(tmp_path / "calibration.json", found)
    assert found.all_resident_step_ms is not None
    assert found.all_resident_step_ms > 0
    assert found.cold_layers is not None
    assert 0 < found.cold_layers <= 2
    assert found.bound_ms() is not None
    assert calibrate.table(found).count("dense + Σ max(C, G)") == 1
    seen = []
    for _ in range(2):
        again = on_gpu(
            model.folder, slots=16, dtype="bfloat16", calibration=tmp_path / "calibration.json",
            placement="ostinato:prefill=cooperative",
        )  # fmt: skip
        assert again.experts.shares.rates == found.groups[0].rates
        again.reset()
        seen.append((again.logits(model.ids[:32]).clone(), again.experts.uploads))
    assert torch.equal(seen[0][0], seen[1][0])
    assert seen[0][1] == seen[1][1]
