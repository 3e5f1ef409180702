"""Finds the decoder layers whose single-token pass lean_layer.py computes, by structure and by trying it."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import linear

from engines.ostinato.experts import per_token
from engines.ostinato.forward import OwnKv
from engines.ostinato.kv import LayerKv
from engines.ostinato.lean_layer import MOST_CHOSEN, MOST_EXPERTS, Gate, Lean, LeanLayer, router_of

_TRIED = 4
"""Tokens that a layer is tried with."""
_TOLERANCE = {torch.float32: 1e-4}
_ROUNDING = 5e-2
"""Of 16-bit types: a layer that computes anything else differs by more."""
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")


def install(own: OwnKv, lean: Lean) -> int:
    """Let layers that are found alike compute single tokens this way; returns how many.

    Their weights of query, key and value projections become parts of one matrix.
    """
    layers: list[Any] = [module for module in own.model.modules() if _is_alike(module)]
    if not layers:
        return 0
    counts = [(uses, uses.copy()) for layer in layers for uses in _counts(layer)]
    trials = _record(own, layers)
    for uses, before in counts:
        uses[:] = before
    found = 0
    for layer, trial in zip(layers, trials, strict=True):
        with torch.inference_mode(), torch.cuda.device_of(trial.x[0]):
            fitting = _fitting(own, layer, lean, trial)
        if fitting is not None:
            layer.forward = fitting.forward
            layer.ostinato_lean = fitting
            found += 1
    own.lean = lean if found else None
    return found


def _fitting(own: OwnKv, layer: Any, lean: Lean, trial: "_Trial") -> LeanLayer | None:
    gate = _gate(layer, trial, per_token(own.model.config))
    if gate is None:
        return None
    tried = (LeanLayer(layer, lean, layer.self_attn.ostinato_kv, gate, doubled=doubled) for doubled in (False, True))
    return next((candidate for candidate in tried if _agrees(own, candidate, trial)), None)


def _counts(layer: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which experts of the layer were used: a trial's routes are no request's."""
    experts, number = layer.mlp.experts.ostinato_experts, layer.mlp.experts.ostinato_layer
    return experts.uses_LE[number], experts.cpu_uses_LE[number]


@dataclass
class _Trial:
    """What one layer's modules got and gave, a value a token."""

    x: list[Tensor] = field(default_factory=list)
    turns: list[Any] = field(default_factory=list)
    between: list[Tensor] = field(default_factory=list)
    normed: list[Tensor] = field(default_factory=list)
    gate: list[Any] = field(default_factory=list)
    routed: list[Tensor] = field(default_factory=list)
    out: list[Any] = field(default_factory=list)


def _is_alike(layer: Any) -> bool:
    """Whether the layer has the parts, and no others."""
    names = {name for name, _ in layer.named_children()}
    if names != {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    router, kv = router_of(layer), getattr(attention, "ostinato_kv", None)
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    heads = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    held = {name for name, _ in attention.named_children()}
    if (
        {name for name, _ in mlp.named_children()} not in ({"experts", "gate"}, {"experts", "router"})
        or not hasattr(mlp.experts, "ostinato_layer")
        or not isinstance(kv, LayerKv)
        or kv.asked is None
        or kv.asked.softcap is not None
        or not isinstance(getattr(attention, "head_dim", None), int)
        or not set(_PROJECTIONS) <= held <= {*_PROJECTIONS, "q_norm", "k_norm"}
        or (heads[0] is None) != (heads[1] is None)
    ):
        return False
    projections = [getattr(attention, name) for name in _PROJECTIONS]
    kinds = {p.dtype for p in layer.parameters() if p.device.type != "meta"}
    wide = attention.head_dim
    return (
        all(type(module) is nn.Linear for module in projections)
        and len({module.bias is None for module in projections[:3]}) == 1
        and projections[1].out_features == projections[2].out_features
        and all(module.out_features % wide == 0 for module in projections[:3])
        and projections[0].out_features % projections[1].out_features == 0
        and kv.buffers[0].shape[2] == kv.buffers[1].shape[2] == wide
        and all(hasattr(norm, "variance_epsilon") for norm in (*norms, *heads) if norm is not None)
        and all(norm is None or norm.weight.shape == (wide,) for norm in heads)
        and isinstance(getattr(router, "weight", None), Tensor)
        and router.weight.dim() == 2
        and len(router.weight) <= MOST_EXPERTS
        and not list(router.children())
        and len(kinds) == 1
        and kinds <= {torch.float32, torch.bfloat16, torch.float16}
    )


def _record(own: OwnKv, layers: list[Any]) -> list[_Trial]:
    """Single tokens through the model as it is."""
    trials = [_Trial() for _ in layers]
    hooks: list[Any] = []

    def watch(layer: Any, trial: _Trial) -> None:
        def begins(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            trial.x.append(_first(args, kwargs).clone())
            trial.turns.append(kwargs.get("position_embeddings"))

        def between(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            trial.between.append(_first(args, kwargs).clone())
            trial.normed.append(output.clone())

        def into(kept: list[Any]) -> Any:
            return lambda _module, _args, output: kept.append(output)

        hooks.append(layer.register_forward_pre_hook(begins, with_kwargs=True))
        hooks.append(layer.register_forward_hook(into(trial.out)))
        hooks.append(layer.post_attention_layernorm.register_forward_hook(between, with_kwargs=True))
        hooks.append(router_of(layer).register_forward_hook(into(trial.gate)))
        hooks.append(  # a copy: its memory is used again
            layer.mlp.experts.register_forward_hook(lambda _module, _args, out: trial.routed.append(out.clone()))
        )

    for layer, trial in zip(layers, trials, strict=True):
        watch(layer, trial)
    try:
        for position in range(_TRIED):
            own.logits([position], position)
    finally:
        for hook in hooks:
            hook.remove()
    return trials


def _gate(layer: Any, trial: _Trial, K: int) -> Gate | None:
    """What the layer's router does, if ``Gate`` can."""
    E = len(router_of(layer).weight)
    if min(E, MOST_CHOSEN) < K or not all(isinstance(given, tuple) and len(given) == 3 for given in trial.gate):
        return None
    kind = trial.gate[0][1].dtype
    for among in (True, False):
        gate = Gate(E, K, among, kind)
        if all(_chooses(gate, _logits(layer, normed), *given[1:]) for normed, given in _pairs(trial)):
            return gate
    return None


def _pairs(trial: _Trial) -> Any:
    return zip(trial.normed, trial.gate, strict=True)


def _logits(layer: Any, normed: Tensor) -> Tensor:
    router = router_of(layer)
    return linear(normed.reshape(-1), router.weight, getattr(router, "bias", None))


def _chooses(gate: Gate, logits_E: Tensor, weights: Tensor, ids: Tensor) -> bool:
    """Whether the weights and, but for equals, the experts are the router's."""
    if weights.shape != (1, gate.K) or ids.shape != (1, gate.K):
        return False
    chosen, own = gate.choose(logits_E)
    return _near(own.sort().values, weights.sort().values) and _near(
        logits_E[chosen[0]].sort().values, logits_E[ids[0]].sort().values
    )


def _agrees(own: OwnKv, lean: LeanLayer, trial: _Trial) -> bool:
    """Whether each of the layer's halves gives what the layer's own gave."""
    for position in range(_TRIED):
        own.at(position)
        between, out, turns = trial.between[position].reshape(1, -1), trial.out[position], trial.turns[position]
        if not isinstance(out, Tensor) or not isinstance(turns, tuple) or not lean.can_turn(*turns):
            return False
        attended = lean.attention(trial.x[position].reshape(1, -1), *turns)
        normed, logits = lean.route(between)
        if not (
            _near(attended, between)
            and _near(normed, trial.normed[position].reshape(1, -1))
            and _near(logits, _logits(lean.layer, trial.normed[position]))
            and _near(between + trial.routed[position].reshape(1, -1), out.reshape(1, -1))
        ):
            return False
    return True


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    found: Tensor = args[0] if args else next(iter(kwargs.values()))
    return found


def _near(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    tolerance = _TOLERANCE.get(other.dtype, _ROUNDING)
    return bool((one.float() - other.float()).abs().max() <= tolerance * other.float().abs().max())
