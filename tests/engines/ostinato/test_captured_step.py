"""Captured steps on simulated GPUs: what is recorded once gives, run again, what launching every operator gives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")
pytest.importorskip("triton", reason="the device branch under test comes with triton (extra `dev`)")

import torch
from families import FAMILIES, Tiny
from simulated_gpus import Machine, Operators, simulated

from engines.ostinato import assembly
from engines.ostinato.assembly import Options, open_engine
from engines.ostinato.decode_graph import DecodeGraph

Get = Callable[..., Any]
PROMPT, STEPS = 40, 12
CAPTURED = [family for family in FAMILIES if family != "deepseek_v4"]
"""Whose keys and values are the engine's own."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def opened(machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    devices = tuple(torch.device("cpu", number) for number in range(len(machine.streams)))
    monkeypatch.setattr(assembly, "named_devices", lambda _text: devices)
    settings: dict[str, Any] = {"context": 512, "chunk": 32, "threads": 1, "placement": "ostinato:borrow=false"}
    engine = open_engine(Options(model=folder, **(settings | options)))
    engine.prefill([1, 2, 3])  # keys and values have their room
    for group in engine.groups:
        if group.lru is not None:  # as when an engine starts: what warms a step up overwrites these slots
            group.pool.fill([])
    machine.stepping = True
    with Operators(machine):
        engine.graph = DecodeGraph(engine._forward, engine.groups, engine.backgrounds, most=256)
    machine.stepping = False
    engine.reset()
    return engine


def check(engine: Any, model: Tiny) -> None:
    prompt = model.ids[:PROMPT]
    engine.reset()
    first = engine.prefill(prompt).next_id
    chosen = [first, *engine.decode(first, STEPS, None)]
    assert chosen == model.logits([*prompt, *chosen[:-1]])[PROMPT - 1 :].argmax(-1).tolist()
    forced = model.ids[PROMPT : PROMPT + STEPS]
    engine.prefill(prompt)
    del engine.cached_ids[PROMPT:]
    choices = list(engine.decode(forced[0], STEPS, [*forced[1:], 0]))
    assert choices == model.wanted[PROMPT : PROMPT + STEPS].argmax(-1).tolist()
    # The next prompt builds on the keys and values of captured steps.
    assert engine.prefill([*model.ids[: PROMPT + STEPS], 7]).cached_tokens == PROMPT + STEPS
    wanted = model.logits([*model.ids[: PROMPT + STEPS], 7, 9])[-1]
    assert float((engine.logits([9]) - wanted).abs().max() / wanted.abs().max()) < 1e-5


def _some(quick: bool, *values: Any) -> Any:
    return pytest.param(*values, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(
    ("family", "count"),
    [_some((family, n) in (("qwen3_moe", 2), ("gpt_oss", 3)), family, n) for family in CAPTURED for n in (1, 2, 3)],
)
def test_captured_steps_choose_the_plain_tokens_on_any_number_of_devices(
    family: str, count: int, tiny: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(family, num_hidden_layers=4)
    with simulated(monkeypatch, count) as machine:
        engine = opened(machine, model.folder, monkeypatch, slots=12)
        try:
            assert len(engine.groups) == count
            check(engine, model)
            assert engine.graph.recorded().sum() > 0
            assert (engine.graph.recorded() == 0).all()
            assert all(group.cpu_uses_LE.sum() > 0 for group in engine.groups)
        finally:
            engine.graph.service.stop()
            engine.groups[0].cpu.close()


@pytest.mark.parametrize(
    "placement",
    [_some(name == "lru_cache", name)
     for name in ("lru_cache", "paging", "layers", "ostinato:overlapped=false,borrow=false")],
)  # fmt: skip
def test_policies_that_decide_within_a_step_do_so_on_two_devices(
    placement: str, tiny: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("qwen3_moe", num_hidden_layers=4)
    with simulated(monkeypatch, 2) as machine:
        engine = opened(machine, model.folder, monkeypatch, slots=12, placement=placement)
        try:
            check(engine, model)
        finally:
            engine.graph.service.stop()
            engine.groups[0].cpu.close()
