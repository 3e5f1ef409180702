"""The devices that a pass goes through: each has consecutive layers, and what they read is there when they begin.

The first device holds the embeddings, the last one the final norm and the output head. Hooks before the layers hand
over whatever tensors another device has made, so no family needs code of its own.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class Block:
    """The MoE layers of one device, counted from 0."""

    device: torch.device
    layers: range


Cross = Callable[[int, int, list[Tensor]], list[Tensor]]
"""(stage left, stage entered, tensors) → copies of them on the device of the one entered; the same stage twice: a
tensor that is needed there later than the others."""


class Stages:
    """Where each part of a model lies, and what a pass does on its way.

    Args:
        experts: names of the experts modules, one a MoE layer.
    """

    def __init__(self, model: PreTrainedModel, experts: Sequence[str], blocks: Sequence[Block]) -> None:
        self.blocks = tuple(blocks)
        self.devices = tuple(block.device for block in blocks)
        found = [re.fullmatch(r"(.*?)\.(\d+)\..*", name) for name in experts]
        assert all(found), "experts lie in a list of layers"
        self._list = next(match[1] for match in found if match)
        numbers = [int(match[2]) for match in found if match]
        self._first = [numbers[block.layers.start] for block in blocks]
        """Number of the first MoE layer of each stage."""
        embeddings = model.get_input_embeddings()
        self._begins = {name for name, module in model.named_modules() if module is embeddings or "rotary" in name}
        self.cross: Cross = self._copy
        """What hands tensors over; a captured step has its own way."""
        self.at = 0
        """The stage that a pass is in."""
        self._moved: dict[int, tuple[Tensor, Tensor]] = {}
        """By identity: tensors and their copies on this stage's device."""
        if len(blocks) > 1:
            self._watch(model)

    def of(self, name: str) -> int:
        """The stage of a parameter, buffer or module."""
        layer = re.match(rf"{re.escape(self._list)}\.(\d+)(\.|$)", name)
        if layer is not None:
            return max(0, sum(first <= int(layer[1]) for first in self._first) - 1)
        return (
            0 if any(name == held or name.startswith(f"{held}.") for held in self._begins) else len(self.blocks) - 1
        )

    def device(self, name: str) -> torch.device:
        """The device of a parameter or buffer."""
        return self.devices[self.of(name)]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around a pass: it begins on the first device. Each thread has a current device of its own, so this says it
        every time."""
        self._begin()
        try:
            yield
        finally:
            self._begin()

    def _begin(self) -> None:
        self.at = 0
        self._moved.clear()
        _make_current(self.devices[0])

    def _watch(self, model: PreTrainedModel) -> None:
        """Hooks before every layer and before what stands beside their list."""
        parents = {self._list.rpartition(".")[0], ""}
        for name, module in model.named_modules():
            in_list = name.rpartition(".")[0] == self._list
            beside = name.rpartition(".")[0] in parents and name not in (*parents, self._list) and name != ""
            if in_list or beside:
                hook = torch.compiler.disable(self._hook(self.of(name)))
                module.register_forward_pre_hook(hook, with_kwargs=True)

    def _hook(self, stage: int) -> Callable[..., tuple[Any, Any] | None]:
        def hand_over(_module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
            away: dict[int, Tensor] = {}
            _each_tensor((args, kwargs), lambda t: away.setdefault(id(t), t) if self.is_away(t, stage) else t)
            held = self._moved
            if stage != self.at:
                self._moved = {}
            new = [t for key, t in away.items() if key not in self._moved]
            if stage != self.at or new:
                # From the device that the pass leaves, where there is a copy: further ones may be out of its reach.
                copies = self.cross(self.at, stage, [held[id(t)][1] if id(t) in held else t for t in new])
                self._moved |= {id(t): (t, copy) for t, copy in zip(new, copies, strict=True)}
                self.at = stage
            if not away:
                return None
            moved: tuple[Any, Any] = _each_tensor(
                (args, kwargs), lambda t: self._moved[id(t)][1] if id(t) in away else t
            )
            return moved

        return hand_over

    def is_away(self, tensor: Tensor, stage: int) -> bool:
        """Whether a stage can't read a tensor where it lies."""
        return tensor.device != self.devices[stage]

    def _copy(self, _left: int, entered: int, tensors: list[Tensor]) -> list[Tensor]:
        device = self.devices[entered]
        _make_current(device)
        return [tensor.to(device) for tensor in tensors]


def _make_current(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_device(device)


def _each_tensor(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The same tuples, lists and dicts with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(_each_tensor(item, change) for item in value)
    if type(value) is dict:
        return {key: _each_tensor(item, change) for key, item in value.items()}
    return value
