"""Where a model's layers go, and that no operator ever sees tensors of two devices."""

import itertools
from typing import Any

import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")

import torch
from families import FAMILIES, config_of
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM

from engines.ostinato import experts
from engines.ostinato.forward import OwnKv
from engines.ostinato.planner.blocks import blocks
from engines.ostinato.planner.model_shape import ModelShape
from engines.ostinato.stages import Block, Stages

DEVICES = [torch.device("cpu", number) for number in (1, 2, 3)]
"""Tensors without storage keep such devices apart, as real ones would be on three GPUs."""


class _NoExperts:
    """Stands for the engine's experts: only devices are of interest here."""

    def forward(self, _layer: int, x_TD: Tensor, _ids_TK: Tensor, _weights_TK: Tensor) -> Tensor:
        return torch.zeros_like(x_TD)


def _put(model: nn.Module, stages: Stages) -> None:
    for name, module in model.named_modules():
        for leaf, weight in module._parameters.items():
            if weight is not None:
                device = stages.device(f"{name}.{leaf}".lstrip("."))
                fake = torch.empty(weight.shape, dtype=weight.dtype, device=device)
                module._parameters[leaf] = nn.Parameter(fake, requires_grad=False)
        for leaf, buffer in module._buffers.items():
            if buffer is not None:
                device = stages.device(f"{name}.{leaf}".lstrip("."))
                module._buffers[leaf] = torch.empty(buffer.shape, dtype=buffer.dtype, device=device)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_operator_finds_its_tensors_on_one_device(family: str, tied: bool) -> None:
    model: Any = AutoModelForCausalLM.from_config(config_of(family, num_hidden_layers=6, tie_word_embeddings=tied))
    names = [name for name, module in model.named_modules() if hasattr(module, "is_transposed")]
    cuts = [0, 2, len(names) - 1, len(names)]
    parts = [Block(device, range(a, b)) for device, (a, b) in zip(DEVICES, itertools.pairwise(cuts), strict=True)]
    stages = Stages(model, names, parts)
    crossings: list[tuple[int, int]] = []

    def cross(left: int, entered: int, tensors: list[Tensor]) -> list[Tensor]:
        crossings.append((left, entered))
        assert {tensor.device for tensor in tensors} == {DEVICES[left]}, "only what the device before has is in reach"
        return [tensor.to(DEVICES[entered]) for tensor in tensors]

    stages.cross = cross
    model.set_experts_implementation(experts.NAME)
    for layer, name in enumerate(names):
        module = model.get_submodule(name)
        module.ostinato_experts, module.ostinato_layer = _NoExperts(), layer
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), stages.running():
        _put(model, stages)
        if family != "deepseek_v4":
            OwnKv(model, stages, 64)
        ids = torch.zeros(1, 6, dtype=torch.int64, device=DEVICES[0])
        positions = torch.arange(6, device=DEVICES[0])[None]
        logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        assert logits.device == DEVICES[2]
    assert crossings == [(0, 1), (1, 2)], "everything is handed over at once, as a captured step needs it"
    assert stages.at == 0


def _shape(**changes: Any) -> ModelShape:
    values: dict[str, Any] = {
        "model_hash": "", "layers": 12, "moe_layers": tuple(range(12)), "experts": 8, "experts_per_token": 2,
        "hidden": 8, "expert_bytes": (100,) * 12, "dense_bytes": (50,) * 12, "other_bytes": 0,
        "kv_bytes_per_token": (1,) * 12,
    }  # fmt: skip
    return ModelShape(**(values | changes))


def test_equal_gpus_get_equally_many_layers_and_a_larger_one_more() -> None:
    assert blocks(_shape(), [2000, 2000], 10) == [range(6), range(6, 12)]
    assert sorted(map(len, blocks(_shape(), [1 << 40] * 5, 10))) == [2, 2, 2, 3, 3]
    small, large = blocks(_shape(), [2000, 4000], 10)
    assert len(small) == 4
    assert len(large) == 8


def test_embeddings_and_larger_experts_count_where_layers_are_spread() -> None:
    ends = blocks(_shape(other_bytes=1600), [2000, 2000, 2000], 10)
    assert len(ends[1]) > len(ends[0])
    assert len(ends[1]) > len(ends[2])
    uneven = blocks(_shape(expert_bytes=(100,) * 6 + (200,) * 6), [2000, 2000], 10)
    assert len(uneven[0]) > len(uneven[1])


def test_dense_layers_go_with_the_experts_before_them() -> None:
    shape = _shape(layers=14, moe_layers=tuple(range(2, 14)), dense_bytes=(500, 500, *(50,) * 12),
                   kv_bytes_per_token=(1,) * 14)  # fmt: skip
    first, second = blocks(shape, [2600, 2600], 10)
    assert len(first) < len(second)
    assert first.stop == second.start
