"""One forward pass of a transformers model over one sequence, whatever keeps its keys and values."""

from collections.abc import Sequence as Ids
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from engines.ostinato import experts, kv
from engines.ostinato.cache import argument_name
from engines.ostinato.errors import SetupError
from engines.ostinato.lean_layer import Lean
from engines.ostinato.stages import Stages

# Shapes: T = new tokens, V = vocabulary.

_PLAIN = {"full_attention", "sliding_attention"}


class Forward(Protocol):
    """Appends tokens to a sequence."""

    def logits(self, ids: Ids[int], start: int) -> Tensor:
        """Cut the sequence to its first ``start`` tokens, append T more; the logits after the last one, ``[V]``."""


class OwnKv:
    """Keys and values in ``LayerKv``: what the decode graph needs, and room that is known from the start."""

    def __init__(self, model: PreTrainedModel, stages: Stages, room: int) -> None:
        self.stages = stages
        self.sequences = {device: kv.Sequence(device, room) for device in stages.devices}
        """Of each device; all say the same."""
        self.sequence = self.sequences[stages.devices[0]]
        """Of the device where a pass begins."""
        self.model = model
        self.layers: list[kv.LayerKv] = []
        self.compiled = "none"
        """Which passes run compiled layers: ``none``, ``decode`` (single tokens), ``all``."""
        self.lean: Lean | None = None
        """What layers share whose single-token passes have kernels of their own (lean_decode.py)."""
        for name, module in model.named_modules():
            if name.rpartition(".")[2] in ("self_attn", "attention", "attn") and not hasattr(module, "layers"):
                layer = kv.LayerKv(self.sequences[stages.device(name)])
                module.ostinato_kv = layer
                self.layers.append(layer)
        model.set_attn_implementation(kv.NAME)

    def logits(self, ids: Ids[int], start: int) -> Tensor:
        self.at(start)
        device = self.sequence.device
        ids_1T = torch.tensor([list(ids)], device=device)
        positions_1T = torch.arange(start, start + len(ids), device=device)[None]
        runs_compiled = self.compiled == "all" or (self.compiled == "decode" and len(ids) == 1)
        stance = torch.compiler.set_stance("default" if runs_compiled else "force_eager")
        with torch.inference_mode(), stance, self.stages.running():
            output = self.model(input_ids=ids_1T, position_ids=positions_1T, use_cache=False, logits_to_keep=1)
        logits_V: Tensor = output.logits[0, -1]
        return logits_V

    def at(self, start: int) -> None:
        """Go on after the first ``start`` tokens."""
        for sequence in self.sequences.values():
            sequence.at(start)

    def compile(self, which: str) -> None:
        """Compile decoder layers one by one: like ones share the code. Lean ones need it for long passes."""
        self.compiled = which
        torch._dynamo.config.recompile_limit = 64  # noqa: SLF001 - kinds of layers, not of inputs
        for module in self.model.modules():
            lean = getattr(module, "ostinato_lean", None)
            if lean is not None:
                if which == "all":
                    lean.plain = torch.compile(lean.plain)
            elif hasattr(module, "self_attn") and hasattr(module, "mlp"):
                module.compile(dynamic=False if which == "decode" else None)

    @property
    def nbytes(self) -> int:
        """Of all layers' keys and values."""
        return sum(layer.nbytes for layer in self.layers)

    @property
    def token_bytes(self) -> int:
        """One token's keys and values in all layers."""
        return sum(layer.token_bytes for layer in self.layers)

    def resize(self, room: int, held: int) -> None:
        """Take room for so many tokens, keeping the first ``held``; on a GPU the room stays the context's."""
        for layer in self.layers:
            layer.resize(room, held)


class TransformersKv:
    """transformers' own caches, for models whose attention is not of the plain kind (compressed, indexed, linear).

    They can only grow: what a new prompt shares with the old one beyond whole sequences is computed again.
    """

    def __init__(self, model: PreTrainedModel, stages: Stages) -> None:
        self.model, self._stages = model, stages
        self._argument = argument_name(model)
        self._cache = DynamicCache(config=model.config)
        self._held: list[int] = []

    def logits(self, ids: Ids[int], start: int) -> Tensor:
        if start != len(self._held):
            ids = self._held[:start] + list(ids)
            self._cache = DynamicCache(config=self.model.config)
            self._held = []
        ids_1T = torch.tensor([list(ids)], device=self._stages.devices[0])
        with torch.inference_mode(), self._stages.running():
            output = self.model(input_ids=ids_1T, use_cache=True, logits_to_keep=1, **{self._argument: self._cache})
        self._held += ids
        logits_V: Tensor = output.logits[0, -1]
        return logits_V


def choose(model: PreTrainedModel, stages: Stages, room: int) -> OwnKv | TransformersKv:
    """Our own keys and values where every attention layer of the model comes to them, else transformers'.

    Needs the experts to be installed: a pass is tried.
    """
    model.set_experts_implementation(experts.NAME)
    if set(getattr(model.config, "layer_types", None) or ()) <= _PLAIN:
        before: Any = model.config._attn_implementation  # noqa: SLF001 - no public reader
        own = OwnKv(model, stages, room)
        if _is_plain(own, getattr(model.config, "num_hidden_layers", 0)):
            return own
        for module in model.modules():
            if hasattr(module, "ostinato_kv"):
                del module.ostinato_kv
        model.set_attn_implementation(before)
    other = TransformersKv(model, stages)
    try:
        other.logits([0] * 4, 0)
    except (RuntimeError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise SetupError(
            f"{type(model).__name__}: its attention keeps a state that can't be kept between turns ({error}); "
            "no model of this family can be served yet"
        ) from error
    return other


def _is_plain(own: OwnKv, layers: int) -> bool:
    try:
        own.logits([0] * 4, 0)
        own.logits([0], 4)
    except (RuntimeError, TypeError, AttributeError, ValueError, IndexError):
        return False
    return len(own.layers) == layers and all(layer.seen == 1 for layer in own.layers)
