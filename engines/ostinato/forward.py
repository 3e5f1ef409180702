"""One forward pass of a transformers model over one sequence, whatever keeps its keys and values."""

from collections.abc import Sequence as Ids
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from engines.ostinato import experts, kv
from engines.ostinato.cache import argument_name
from engines.ostinato.errors import SetupError

# Shapes: T = new tokens, V = vocabulary.

_PLAIN = {"full_attention", "sliding_attention"}


class Forward(Protocol):
    """Appends tokens to a sequence."""

    def logits(self, ids: Ids[int], start: int) -> Tensor:
        """Cut the sequence to its first ``start`` tokens, append T more; the logits after the last one, ``[V]``."""


class OwnKv:
    """Keys and values in ``LayerKv``: what the decode graph needs, and room that is known from the start."""

    def __init__(self, model: PreTrainedModel, device: torch.device, room: int) -> None:
        self.sequence = kv.Sequence(device, room)
        self.model = model
        self.layers: list[kv.LayerKv] = []
        self.compiled = "none"
        """Which passes run compiled layers: ``none``, ``decode`` (single tokens), ``all``."""
        for name, module in model.named_modules():
            if name.rpartition(".")[2] in ("self_attn", "attention", "attn") and not hasattr(module, "layers"):
                layer = kv.LayerKv(self.sequence)
                module.ostinato_kv = layer
                self.layers.append(layer)
        model.set_attn_implementation(kv.NAME)

    def logits(self, ids: Ids[int], start: int) -> Tensor:
        self.sequence.at(start)
        device = self.sequence.device
        ids_1T = torch.tensor([list(ids)], device=device)
        positions_1T = torch.arange(start, start + len(ids), device=device)[None]
        runs_compiled = self.compiled == "all" or (self.compiled == "decode" and len(ids) == 1)
        with torch.inference_mode(), torch.compiler.set_stance("default" if runs_compiled else "force_eager"):
            output = self.model(input_ids=ids_1T, position_ids=positions_1T, use_cache=False, logits_to_keep=1)
        logits_V: Tensor = output.logits[0, -1]
        return logits_V

    def compile(self, which: str) -> None:
        """Compile decoder layers one by one: those that are alike share the code."""
        self.compiled = which
        torch._dynamo.config.recompile_limit = 64  # noqa: SLF001 - kinds of layers, not of inputs
        for module in self.model.modules():
            if hasattr(module, "self_attn") and hasattr(module, "mlp"):
                module.compile(dynamic=False if which == "decode" else None)

    @property
    def nbytes(self) -> int:
        """Of all layers' keys and values."""
        return sum(layer.nbytes for layer in self.layers)


class TransformersKv:
    """transformers' own caches, for models whose attention is not of the plain kind (compressed, indexed, linear).

    They can only grow: what a new prompt shares with the old one beyond whole sequences is computed again.
    """

    def __init__(self, model: PreTrainedModel, device: torch.device) -> None:
        self.model, self._device = model, device
        self._argument = argument_name(model)
        self._cache = DynamicCache(config=model.config)
        self._held: list[int] = []

    def logits(self, ids: Ids[int], start: int) -> Tensor:
        if start != len(self._held):
            ids = self._held[:start] + list(ids)
            self._cache = DynamicCache(config=self.model.config)
            self._held = []
        ids_1T = torch.tensor([list(ids)], device=self._device)
        with torch.inference_mode():
            output = self.model(input_ids=ids_1T, use_cache=True, logits_to_keep=1, **{self._argument: self._cache})
        self._held += ids
        logits_V: Tensor = output.logits[0, -1]
        return logits_V


def choose(model: PreTrainedModel, device: torch.device, room: int) -> OwnKv | TransformersKv:
    """Our own keys and values where every attention layer of the model comes to them, else transformers'.

    Needs the experts to be installed: a pass is tried.
    """
    model.set_experts_implementation(experts.NAME)
    if set(getattr(model.config, "layer_types", None) or ()) <= _PLAIN:
        before: Any = model.config._attn_implementation  # noqa: SLF001 - no public reader
        own = OwnKv(model, device, room)
        if _is_plain(own, getattr(model.config, "num_hidden_layers", 0)):
            return own
        for module in model.modules():
            if hasattr(module, "ostinato_kv"):
                del module.ostinato_kv
        model.set_attn_implementation(before)
    other = TransformersKv(model, device)
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
