"""Who is resident on which GPU: what the planner decides and the engine loads."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.errors import SetupError

# Shapes: L = MoE layers (counted from 0, dense layers left out), E = experts.

VERSION = 1
Expert = tuple[int, int]
"""(layer, expert)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One GPU's expert slots, shared by its layers."""

    layers: range
    pool_bytes: int
    """Room for resident experts; zero slots, staging and the rest are not in it."""
    resident: tuple[Expert, ...]
    """The most frequently routed first, so that an engine with less room keeps the first ones."""
    reserve: tuple[Expert, ...] = ()
    """Who would join with 1 GiB more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What the cost model says of a decode step, from the routes that the plan was made of."""

    cold_routes_per_step: float
    decode_step_ms: float | None
    """None without a calibration."""
    gap_bound_ms: float | None
    """How far from the best static residency it can be (proposition 3.1)."""


@dataclass(frozen=True, kw_only=True)
class Residency:
    """Raises: SetupError: an expert that can't be, or that is named twice."""

    pools: tuple[Pool, ...]
    experts: int
    source: str
    """``recorded`` (ranked by recorded routes) or ``uniform`` (nothing was recorded)."""
    coverage: float | None
    """Share of the recorded decode routes that go to resident experts; None when nothing was recorded."""
    model_hash: str
    workload_hash: str | None
    predicted: Predicted | None = None

    def __post_init__(self) -> None:
        for number, pool in enumerate(self.pools):
            named = {*pool.resident, *pool.reserve}
            if len(named) != len(pool.resident) + len(pool.reserve):
                raise SetupError(f"the residency names an expert twice on GPU {number}; plan it again")
            for layer, expert in named:
                if layer not in pool.layers or not 0 <= expert < self.experts:
                    raise SetupError(
                        f"the residency names expert {expert} of layer {layer} on GPU {number}, which can't hold it; "
                        "plan it again for this model"
                    )

    @property
    def layers(self) -> int:
        return sum(len(pool.layers) for pool in self.pools)

    @property
    def resident_LE(self) -> NDArray[np.bool_]:
        return mask(self.layers, self.experts, [pool.resident for pool in self.pools])

    @property
    def grown_LE(self) -> NDArray[np.bool_]:
        """With 1 GiB more on every GPU."""
        return mask(self.layers, self.experts, [pool.resident + pool.reserve for pool in self.pools])


def mask(layers: int, experts: int, groups: Sequence[Sequence[Expert]]) -> NDArray[np.bool_]:
    """A boolean ``[L, E]`` of the experts named."""
    named = np.zeros((layers, experts), bool)
    for group in groups:
        if group:
            layer, expert = np.array(group).T
            named[layer, expert] = True
    return named


def write(path: Path, residency: Residency) -> None:
    """Save as JSON; it appears under its name only when complete.

    Fields (version 1): ``version``, ``kind`` ("residency"), ``model_hash``, ``workload_hash``, ``experts``,
    ``source``, ``coverage``, ``predicted`` {``cold_routes_per_step``, ``decode_step_ms``, ``gap_bound_ms``} or null,
    and ``gpus``: for each ``layers`` [first, after the last], ``pool_bytes``, ``resident`` and ``reserve``, both
    lists of [layer, expert] in order of frequency. Layers are the MoE layers, counted from 0.
    """
    content = {
        "version": VERSION,
        "kind": "residency",
        "model_hash": residency.model_hash,
        "workload_hash": residency.workload_hash,
        "experts": residency.experts,
        "source": residency.source,
        "coverage": residency.coverage,
        "predicted": asdict(residency.predicted) if residency.predicted else None,
        "gpus": [
            {
                "layers": [pool.layers.start, pool.layers.stop],
                "pool_bytes": pool.pool_bytes,
                "resident": pool.resident,
                "reserve": pool.reserve,
            }
            for pool in residency.pools
        ],
    }
    write_json(path, content)


def read(path: Path) -> Residency:
    """Load what ``write`` saved.

    Raises:
        SetupError: no such file, not a residency, written by a newer version.
    """
    content = read_json(path, "residency", VERSION)
    try:
        return Residency(
            pools=tuple(
                Pool(
                    layers=range(*item["layers"]),
                    pool_bytes=item["pool_bytes"],
                    resident=tuple((layer, expert) for layer, expert in item["resident"]),
                    reserve=tuple((layer, expert) for layer, expert in item["reserve"]),
                )
                for item in content["gpus"]
            ),
            predicted=Predicted(**content["predicted"]) if content["predicted"] else None,
            **{name: content[name] for name in ("experts", "source", "coverage", "model_hash", "workload_hash")},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SetupError(f"{path} is damaged: {error!r}; plan it again") from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write to a neighbouring name, then rename; numbers in lists stay on one line."""
    rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.write_text("{\n" + rows + "\n}\n", encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_json(path: Path, kind: str, version: int) -> dict[str, Any]:
    """Load a file that says what it is.

    Raises:
        SetupError: no such file, no JSON, another kind, a newer version.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SetupError(f"{path} can't be read: {error.strerror}; name a {kind} file") from error
    except ValueError as error:
        raise SetupError(f"{path} is no JSON: {error}; name a {kind} file") from error
    if not isinstance(content, dict) or content.get("kind") != kind:
        raise SetupError(f"{path} is no {kind} file; name one that this program wrote")
    if content.get("version", 0) > version:
        raise SetupError(f"{path} has version {content['version']}, this program reads up to {version}; update it")
    return content
