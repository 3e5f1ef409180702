"""What the engine asks of a placement policy: who is resident, what a miss does, which way a prefill goes.

A policy decides; it moves nothing and computes nothing. The engine runs every policy on the same kernels, so that a
comparison isolates the policy. Each GPU has its own policy object, since some remember what they saw.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.planner.calibration import Calibration
from engines.ostinato.planner.routes import RouteCounts

# Shapes: L = MoE layers of the whole model, counted from 0; E = experts.

Miss = Literal["cpu", "fetch", "stream"]
"""A cold route in decode: ``cpu`` computes it there; ``fetch`` copies the expert into a slot first, in place of the
least recently used (the GPU keeps that order itself); ``stream`` copies every cold expert of the layer through
staging."""
Kind = Literal["split", "upload", "cooperative", "stream", "fetch"]
"""``split``: hot routes on the GPU, cold ones on the CPU. ``upload``: each distinct cold expert is copied once.
``cooperative``: some cold experts are copied, the CPU computes the rest. ``stream``: all cold experts of each layer
are copied, chosen or not. ``fetch``: as a miss in decode, token groups small enough for the slots."""


class PrefillPath(NamedTuple):
    """How a prefill pass computes its routed experts."""

    kind: Kind
    residents: bool = True
    """False treats every expert as cold: the pass leaves the slots alone and gains nothing from them."""


class Swap(NamedTuple):
    """An expert to copy into a slot in the background; ``out`` leaves it, or the slot is free."""

    layer: int
    expert: int
    out: tuple[int, int] | None
    """(layer, expert)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """One GPU's room for experts."""

    layers: range
    """Its MoE layers."""
    experts: int
    experts_per_token: int
    expert_bytes: tuple[int, ...]
    """One expert of each MoE layer of the whole model, ``[L]``."""
    pool_bytes: int

    @property
    def slots(self) -> int:
        """How many of its largest experts fit."""
        return self.pool_bytes // max((self.expert_bytes[layer] for layer in self.layers), default=1)

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.asarray(self.expert_bytes, np.int64)

    @property
    def nobody(self) -> NDArray[np.bool_]:
        """``[L, E]``, all false."""
        return np.zeros((len(self.expert_bytes), self.experts), bool)


@dataclass(kw_only=True)
class Policy(ABC):
    """Settings are fields, so that ``name:field=value`` sets them (see the registry)."""

    name: ClassVar[str]
    miss: ClassVar[Miss] = "cpu"
    lru_scope: ClassVar[Literal["gpu", "layer"] | None] = None
    """With ``miss`` = fetch: whether a GPU's layers share its slots, or have equally many each."""
    prefill_updates_cache: ClassVar[bool] = False
    """Whether the experts that a prefill copies stay."""
    counts_hits: ClassVar[bool] = False
    """Whether ``after_step`` must see the routes of resident experts too; else the CPU's own count is enough."""
    overlapped: bool = True
    """CPU and GPU branch of a decode step side by side, or in turn."""
    graph: bool = True
    """One CUDA graph a GPU, or a launch for every kernel."""
    borrow: bool = False
    """Lend the prefill's buffers to decode (placement/borrowed.py)."""
    calibration: Calibration | None = field(default=None, repr=False)

    @abstractmethod
    def residents(self, budget: MemoryBudget, counts: RouteCounts | None) -> NDArray[np.bool_]:
        """Who has a slot at the start, ``[L, E]``; false outside the GPU's layers."""

    @abstractmethod
    def prefill_path(self, tokens: int) -> PrefillPath:
        """The way of one prefill pass (at most 2,048 tokens)."""

    def after_step(
        self,
        uses_LE: NDArray[np.integer[Any]],  # noqa: ARG002
        resident_LE: NDArray[np.bool_],  # noqa: ARG002
        *,
        steps: int = 1,  # noqa: ARG002
    ) -> list[Swap]:
        """Decide background copies.

        Args:
            uses_LE: routes to each expert since the last call.
            resident_LE: who has a slot now, or is on the way into one.
            steps: decode steps since the last call.
        """
        return []

    def fetched_layers(self, layers_ms: Sequence[float], now_ms: float) -> frozenset[int]:  # noqa: ARG002
        """Layers whose cold experts are copied and computed on the GPU in the next step although ``miss`` is cpu.

        Args:
            layers_ms: what each layer's experts took in the last step, ``[L]``.
            now_ms: a clock.
        """
        return frozenset()


def first_fit(order: Sequence[int], budget: MemoryBudget) -> NDArray[np.bool_]:
    """Whole layers in this order, until the next does not fit; ``[L, E]``."""
    resident, room = budget.nobody, budget.pool_bytes
    for layer in order:
        room -= budget.experts * budget.expert_bytes[layer]
        if room < 0:
            break
        resident[layer] = True
    return resident


def upload_from(tokens: int, threshold: int, *, residents: bool = True) -> PrefillPath:
    """Below a number of tokens the CPU computes cold experts, from it on they are copied."""
    return PrefillPath("split" if tokens < threshold else "upload", residents)
