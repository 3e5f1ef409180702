"""The engine on two GPUs, and on one that is not the first: the same logits and tokens as on one, captured or not."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")

import torch
from families import FAMILIES, Tiny, difference

from engines.ostinato.backend import BackendError
from engines.ostinato.placement.registry import POLICIES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.device_count() < 2,
        reason="there are no two CUDA devices here",
    ),
]
Get = Callable[..., Any]
PROMPT = 90
TWO = "cuda:0,cuda:1"
CAPTURED = [family for family in FAMILIES if family != "deepseek_v4"]
"""Whose keys and values are the engine's own."""


@pytest.fixture
def on_gpus(on_gpu: Get) -> Get:
    """``on_gpus(folder, **options)``: the same on two GPUs."""
    return lambda folder, **options: on_gpu(folder, **({"device": TWO} | options))


def of_four(tiny: Get, family: str, **changes: Any) -> Tiny:
    """A model of four layers; of three where a fourth makes the choice of positions to attend to a near-tie."""
    model: Tiny = tiny(family, num_hidden_layers=3 if family == "deepseek_v4" else 4, **changes)
    return model


def place(engine: Any, share: float) -> None:
    """Make a random part of each group's experts resident."""
    for group in engine.groups:
        every = [(int(layer), int(expert)) for layer, expert in np.ndindex(group.pool.slot_LE.shape)]
        group.pool.fill(random.Random(1).sample(every, min(group.pool.slots, round(share * len(every)))))


def follow(engine: Any, path: str) -> None:
    for group in engine.groups:
        group.shares.path = path


def steps_of(engine: Any, ids: list[int]) -> torch.Tensor:
    """Logits after each of the text's tokens from PROMPT on, one by one."""
    engine.reset()
    engine.prefill(ids[:PROMPT])
    return torch.stack([engine.logits([token]).cpu() for token in ids[PROMPT:]])


def greedy(engine: Any, model: Tiny, count: int) -> list[int]:
    engine.reset()
    first = engine.prefill(model.ids[:PROMPT]).next_id
    return [first, *engine.decode(first, count, None)]


def eager(engine: Any, model: Tiny, count: int) -> list[int]:
    engine.reset()
    chosen = [engine.prefill(model.ids[:PROMPT]).next_id]
    for _ in range(count):
        chosen.append(engine.step(chosen[-1]))
    return chosen


def plain(model: Tiny, chosen: list[int]) -> list[int]:
    ids = [*model.ids[:PROMPT], *chosen[:-1]]
    best: list[int] = model.logits(ids)[PROMPT - 1 :].argmax(-1).tolist()
    return best


def test_weights_keys_and_slots_lie_on_the_gpu_of_their_layer(tiny: Get, on_gpus: Get) -> None:
    model = of_four(tiny, "qwen3_moe")
    engine = on_gpus(model.folder, slots=16, dtype="float32")
    engine.prefill(model.ids[:PROMPT])
    assert [group.layers for group in engine.groups] == [(0, 1), (2, 3)]
    decoder = engine._forward.model.model
    for layer, module in enumerate(decoder.layers):
        device = torch.device("cuda", layer // 2)
        dense = [weight for name, weight in module.named_parameters() if ".experts." not in name]
        assert {weight.device for weight in dense} == {device}
        assert module.self_attn.ostinato_kv._keys_GNW.device == device
    assert decoder.embed_tokens.weight.device == torch.device("cuda", 0)
    assert decoder.norm.weight.device == engine._forward.model.lm_head.weight.device == torch.device("cuda", 1)
    for number, group in enumerate(engine.groups):
        device = torch.device("cuda", number)
        assert group.pool.blocks.device == group.pool.table_LE.device == group.staging.blocks.device == device


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_gives_the_plain_logits_whatever_lies_where(family: str, tiny: Get, on_gpus: Get) -> None:
    model = of_four(tiny, family)
    engine = on_gpus(model.folder, slots=64, dtype="float32", graph=False)
    for share in (0.0, 0.5, 1.0):
        place(engine, share)
        for path in ("split", "upload", "cooperative"):
            follow(engine, path)
            assert difference(steps_of(engine, model.ids), model.wanted[PROMPT:]) < 1e-5, (share, path)


@pytest.mark.parametrize("family", CAPTURED)
def test_captured_steps_give_the_plain_tokens_and_logits(family: str, tiny: Get, on_gpus: Get) -> None:
    model = of_four(tiny, family)
    engine = on_gpus(model.folder, slots=16, dtype="float32")
    follow(engine, "split")
    chosen = greedy(engine, model, 40)
    assert chosen == plain(model, chosen)
    forced = model.ids[PROMPT:]
    engine.reset()
    engine.prefill(model.ids[:PROMPT])
    choices = list(engine.decode(forced[0], len(forced), [*forced[1:], 0]))
    assert choices == model.wanted[PROMPT:].argmax(-1).tolist()
    assert difference(engine.graph.logits_V.cpu(), model.wanted[-1]) < 1e-5
    # The keys and values of captured steps are what the next prompt builds on.
    assert engine.prefill([*model.ids, 7]).cached_tokens == len(model.ids)
    assert difference(engine.logits([9]).cpu(), model.logits([*model.ids, 7, 9])[-1]) < 1e-5


# Where experts move, the CPU computes others in a second request or in launched steps: bfloat16 rounds apart.
@pytest.mark.parametrize(
    ("placement", "dtype"),
    [(name, dtype) for name in POLICIES for dtype in ("float32", "bfloat16")
     if dtype == "float32" or name not in ("ostinato", "decay_cache", "lru_cache", "paging")],
)  # fmt: skip
def test_every_policy_chooses_the_same_tokens_captured_or_not(
    placement: str, dtype: str, tiny: Get, on_gpus: Get
) -> None:
    model = of_four(tiny, "qwen3_moe")
    engine = on_gpus(model.folder, slots=12, dtype=dtype, placement=placement)
    follow(engine, "split")
    chosen = greedy(engine, model, 40)
    assert eager(engine, model, 40) == chosen
    if dtype == "float32":
        assert chosen == plain(model, chosen)
        one = on_gpus(model.folder, slots=12, dtype=dtype, placement=placement, device="cuda:0")
        follow(one, "split")
        assert greedy(one, model, 40) == chosen


def test_both_gpus_borrow_memory_while_captured_steps_run(tiny: Get, on_gpus: Get) -> None:
    model = of_four(tiny, "qwen3_moe", num_experts=32, max_position_embeddings=4096)
    engine = on_gpus(model.folder, slots=16, dtype="float32", context=2048)
    follow(engine, "split")
    draw = random.Random(4)
    vocabulary = [draw.randrange(4096) for _ in range(40)]  # few tokens, so that the same experts come back
    forced = draw.choices(vocabulary, k=600)
    engine.reset()
    engine.prefill(model.ids[:PROMPT])
    choices = list(engine.decode(forced[0], len(forced), [*forced[1:], 0]))
    assert all(background.borrowed_hits >= 20 for background in engine.backgrounds)
    assert choices == model.logits([*model.ids[:PROMPT], *forced])[PROMPT:].argmax(-1).tolist()


def test_two_runs_of_captured_steps_give_the_same_bits(tiny: Get, on_gpus: Get) -> None:
    model = of_four(tiny, "qwen3_moe")
    engine = on_gpus(model.folder, slots=12, dtype="bfloat16", placement="ostinato:borrow=false")
    follow(engine, "split")
    seen = []
    for _ in range(2):
        greedy(engine, model, 30)
        seen.append(engine.graph.logits_V.cpu())
    eager(engine, model, 30)
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(engine._logits_V.cpu(), seen[0])


def test_a_cpu_that_does_not_answer_is_an_error_and_the_next_request_is_as_before(tiny: Get, on_gpus: Get) -> None:
    model = of_four(tiny, "qwen3_moe")
    engine = on_gpus(model.folder, slots=8, dtype="float32")
    follow(engine, "split")
    before = greedy(engine, model, 30)
    engine.graph.service.stall(True)
    with pytest.raises(BackendError, match="the CPU pool did not answer within"):
        greedy(engine, model, 30)
    engine.graph.service.stall(False)
    assert greedy(engine, model, 30) == before


def test_a_request_that_is_abandoned_leaves_the_engine_ready(tiny: Get, on_gpus: Get) -> None:
    model = of_four(tiny, "qwen3_moe")
    engine = on_gpus(model.folder, slots=8, dtype="float32")
    follow(engine, "split")
    before = greedy(engine, model, 20)
    engine.reset()
    engine.prefill(model.ids[:PROMPT])
    steps = engine.decode(5, 1000, None)
    for _ in range(10):
        next(steps)
    steps.close()
    assert greedy(engine, model, 20) == before


@pytest.mark.parametrize("device", ["cuda:1", TWO, "cuda:1,cuda:0"])
def test_threads_of_connections_compute_on_the_engines_gpus(device: str, tiny: Get, on_gpus: Get) -> None:
    model = of_four(tiny, "qwen3_moe")
    engine = on_gpus(model.folder, slots=12, dtype="float32", device=device)
    place(engine, 0.4)
    answers: list[Any] = []

    def answer() -> None:
        try:
            for path in ("split", "upload", "cooperative"):
                follow(engine, path)
                answers.append((greedy(engine, model, 20), eager(engine, model, 20)))
        except Exception as error:  # noqa: BLE001 - of another thread: the test tells it
            answers.append(error)

    for _ in range(2):
        thread = threading.Thread(target=answer)
        thread.start()
        thread.join()
    assert len(answers) == 6, answers
    for captured, launched in answers:
        assert captured == launched == plain(model, captured)


@pytest.mark.parametrize("device", ["cuda:0", TWO])
def test_experts_of_two_sizes_are_as_near_as_plain_bfloat16(
    device: str, tiny: Get, on_gpus: Get, tmp_path: Path
) -> None:
    pytest.importorskip("gguf", reason="the model is written with the gguf package")
    from mxfp4_writing import as_mxfp4, dequantised

    model = of_four(tiny, "gpt_oss", num_experts_per_tok=8)
    folder = as_mxfp4(model, tmp_path / "mixed", (0, 2))
    other = model.plain()
    other.load_state_dict(dequantised(folder), strict=False)
    with torch.inference_mode():
        wanted = other(torch.tensor([model.ids])).logits[0]
        rounding = difference(other.to(torch.bfloat16)(torch.tensor([model.ids])).logits[0], wanted)
    engine = on_gpus(folder, slots=32, device=device, dtype="bfloat16", placement="ostinato:borrow=false")
    assert len(engine.groups) == 2 * len(device.split(","))
    for share in (0.0, 0.5, 1.0):
        place(engine, share)
        for path in ("split", "upload"):
            follow(engine, path)
            assert difference(steps_of(engine, model.ids), wanted[PROMPT:]) < 2 * rounding, (share, path)
    place(engine, 0.5)
    assert greedy(engine, model, 40) == eager(engine, model, 40)


@pytest.mark.slow
def test_compiled_layers_choose_the_same_tokens(tiny: Get, on_gpus: Get) -> None:
    model = of_four(tiny, "qwen3_moe")
    engine = on_gpus(model.folder, slots=12, dtype="float32", compiled="decode")
    follow(engine, "split")
    chosen = greedy(engine, model, 40)
    assert chosen == plain(model, chosen)


def test_hundreds_of_turns_do_not_grow_the_memory_of_either_gpu(tiny: Get, on_gpus: Get) -> None:
    model = of_four(tiny, "qwen3_moe")
    engine = on_gpus(model.folder, slots=16, dtype="bfloat16")
    draw = random.Random(3)
    history: list[int] = []
    held = {}
    for turn in range(1, 301):
        if len(history) > 1800:
            del history[draw.randrange(20, 200) :]
        history += draw.choices(range(4096), k=draw.randrange(1, 40))
        first = engine.prefill(history).next_id
        history += [first, *engine.decode(first, 3, None)]
        held[turn] = [torch.cuda.memory_reserved(number) for number in (0, 1)]
    assert all(late <= early for late, early in zip(held[300], held[100], strict=True))
