"""Placement policies by name."""

import types
from dataclasses import fields
from typing import Any, Union, get_args, get_origin, get_type_hints

from engines.ostinato.errors import SetupError
from engines.ostinato.placement.decay_cache import DecayCache
from engines.ostinato.placement.layers import Layers
from engines.ostinato.placement.lru_cache import LruCache
from engines.ostinato.placement.ostinato import Ostinato
from engines.ostinato.placement.paging import Paging
from engines.ostinato.placement.policy import Policy
from engines.ostinato.placement.stream import Stream
from engines.ostinato.placement.tensor_knapsack import TensorKnapsack
from engines.ostinato.placement.uniform import Uniform
from engines.ostinato.planner.calibration import Calibration

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (Ostinato, Layers, LruCache, DecayCache, Uniform, Paging, Stream, TensorKnapsack)
}

_BOOLS = {"true": True, "1": True, "false": False, "0": False}


def policy(spec: str, *, calibration: Calibration | None = None) -> Policy:
    """Build a policy from ``name`` or ``name:field=value,field=value``, as in ``paging:kv_split=50_50,online=true``.

    Each GPU needs one of its own.

    Raises:
        SetupError: no such policy, no such field, a value of another type.
    """
    name, _, settings = spec.partition(":")
    cls = POLICIES.get(name)
    if cls is None:
        raise SetupError(f"--placement {name} is no policy; choose one of {', '.join(POLICIES)}")
    hints = get_type_hints(cls)
    known = {item.name: hints[item.name] for item in fields(cls) if item.init and item.name != "calibration"}
    values: dict[str, Any] = {}
    for setting in filter(None, settings.split(",")):
        key, equals, text = setting.partition("=")
        if key not in known or not equals:
            raise SetupError(f"--placement {name} has no setting {key!r}; choose one of {', '.join(known)}")
        try:
            values[key] = _parsed(text, known[key])
        except ValueError:
            raise SetupError(f"--placement {name}: {key}={text} is no {_named(known[key])}") from None
    return cls(calibration=calibration, **values)


def _parsed(text: str, wanted: Any) -> Any:
    kinds = get_args(wanted) if get_origin(wanted) in (Union, types.UnionType) else (wanted,)
    if type(None) in kinds and text.lower() in ("none", "null", ""):
        return None
    kind = next(kind for kind in kinds if kind is not type(None))
    if kind is bool:
        if text.lower() not in _BOOLS:
            raise ValueError(text)
        return _BOOLS[text.lower()]
    return kind(text)


def _named(wanted: Any) -> str:
    return getattr(wanted, "__name__", str(wanted))
