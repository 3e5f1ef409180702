"""Which layers lie on which device, and how many experts of each size have a slot there.

Slots of one byte size are a pool of their own. How a device's memory is split between sizes follows from who should
be resident: the policy's or the plan's experts first, then those that cover most of the recorded routes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path

import numpy as np
import torch

from engines.ostinato.errors import SetupError
from engines.ostinato.loading import LoadedModel, Part
from engines.ostinato.placement.policy import MemoryBudget, Policy
from engines.ostinato.planner import model_shape
from engines.ostinato.planner.blocks import blocks
from engines.ostinato.planner.calibration import Calibration
from engines.ostinato.planner.plan import most_covering, round_robin
from engines.ostinato.planner.residency import Expert, Residency
from engines.ostinato.planner.routes import RouteCounts
from engines.ostinato.stages import Block

# Shapes: L = MoE layers, E = experts.

_CONTEXT = 32768
"""Tokens whose keys and values count where layers are spread before the model says what it can hold."""


def spread(
    model: Path, devices: Sequence[torch.device], budget: int | None, context: int | None, plan: Residency | None
) -> list[Block]:
    """Each device's MoE layers: a plan's, else as ``planner.blocks`` spreads them.

    Args:
        budget: bytes of each GPU that may be used; None: all that is free.

    Raises:
        SetupError: more devices than layers, a plan for another number of them.
    """
    if plan is not None and len(plan.pools) != len(devices):
        raise SetupError(
            f"the residency is a plan for {len(plan.pools)} GPUs, the engine has {len(devices)}; name as many with "
            "--device, or plan again with one --vram-budget for each"
        )
    if len(devices) == 1:
        return []
    shape = model_shape.read(model)
    if plan is not None:
        planned = [layer for pool in plan.pools for layer in pool.layers]
        if planned != list(range(len(shape.moe_layers))) or not all(len(pool.layers) for pool in plan.pools):
            raise SetupError(
                f"the residency's GPUs do not share the model's {len(shape.moe_layers)} layers with experts; "
                "plan it again"
            )
        return [Block(device, pool.layers) for device, pool in zip(devices, plan.pools, strict=True)]
    budgets = [
        min(budget or 1 << 60, torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 1 << 60
        for device in devices
    ]
    spread_over = blocks(shape, budgets, context or _CONTEXT)
    return [Block(device, layers) for device, layers in zip(devices, spread_over, strict=True)]


def room_of(slots: int, loaded: LoadedModel, plan: Residency | None) -> list[int]:
    """Bytes on each device for a number of experts in all, each of its device's mean size: shared as the plan's are,
    else by layers."""
    blocks = loaded.stages.blocks
    weights = [len(block.layers) for block in blocks]
    if plan is not None and any(pool.resident for pool in plan.pools):
        weights = [len(pool.resident) for pool in plan.pools]
    ends = [slots * end // sum(weights) for end in accumulate(weights, initial=0)]
    rooms = []
    for stage, (block, before, after) in enumerate(zip(blocks, ends, ends[1:], strict=False)):
        mine = [part for part in loaded.parts if part.stage == stage]
        layer_bytes = sum(len(part.layers) * part.store.layout.nbytes for part in mine)
        rooms.append((after - before) * layer_bytes // len(block.layers))
    return rooms


@dataclass(frozen=True, kw_only=True)
class Room:
    """One device's room for experts; layers are counted from its first one."""

    parts: tuple[Part, ...]
    """By expert size."""
    nbytes: int
    experts_per_token: int

    @property
    def layers(self) -> tuple[int, ...]:
        """The device's layers among the model's."""
        return tuple(sorted(layer for part in self.parts for layer in part.layers))

    @property
    def part_L(self) -> np.ndarray:
        """Which part each layer is in."""
        owner = {layer: number for number, part in enumerate(self.parts) for layer in part.layers}
        return np.array([owner[layer] for layer in self.layers])

    @property
    def budget(self) -> MemoryBudget:
        return MemoryBudget(
            layers=range(len(self.layers)),
            experts=self.parts[0].store.experts,
            experts_per_token=self.experts_per_token,
            expert_bytes=tuple(self.parts[part].store.layout.nbytes for part in self.part_L),
            pool_bytes=self.nbytes,
        )


def slots(room: Room, policy: Policy, counts: RouteCounts | None, planned: Sequence[Expert] | None) -> list[int]:
    """How many experts of each part have a slot.

    Args:
        policy: one of its own: it only says whom it would take.
        counts: of the device's layers.
        planned: a plan's experts, the most routed first; None: the policy says who is resident.
    """
    if len(room.parts) == 1:
        store = room.parts[0].store
        return [min(room.nbytes // store.layout.nbytes, store.layers * store.experts)]
    budget, part_L = room.budget, room.part_L
    left, found = room.nbytes, [0] * len(room.parts)
    seen: set[Expert] = set()
    for layer, expert in _in_order(budget, policy, counts, planned):
        size = budget.expert_bytes[layer]
        if (layer, expert) not in seen and size <= left:
            seen.add((layer, expert))
            left -= size
            found[part_L[layer]] += 1
    return found


def _in_order(
    budget: MemoryBudget, policy: Policy, counts: RouteCounts | None, planned: Sequence[Expert] | None
) -> Iterator[Expert]:
    """Whoever should be resident, then whoever covers most, then anybody."""
    first = planned
    if first is None:
        first = [(int(layer), int(expert)) for layer, expert in np.argwhere(policy.residents(budget, counts))]
    if counts is None:
        best = round_robin(budget.layers, budget.experts, budget.sizes, budget.pool_bytes)
    else:
        best = most_covering(counts.ranking_LE, budget.layers, budget.sizes, budget.pool_bytes)
    every = ((layer, expert) for expert in range(budget.experts) for layer in budget.layers)
    return chain(first, best, every)


def residents(
    part: Part, slots: int, policy: Policy, counts: RouteCounts | None, planned: Sequence[Expert] | None, K: int
) -> list[Expert]:
    """Who is in a part's slots at the start, layers counted within the part.

    Args:
        counts: of the part's layers; ``planned`` likewise.
        K: experts a token goes to.
    """
    if planned is not None:
        return list(planned[:slots])
    store = part.store
    budget = MemoryBudget(
        layers=range(store.layers),
        experts=store.experts,
        experts_per_token=K,
        expert_bytes=(store.layout.nbytes,) * store.layers,
        pool_bytes=slots * store.layout.nbytes,
    )
    resident_LE = policy.residents(budget, counts)
    return [(int(layer), int(expert)) for layer, expert in np.argwhere(resident_LE)][:slots]


def of_layers(experts: Sequence[Expert], layers: Sequence[int]) -> list[Expert]:
    """Those of some layers, which are counted anew."""
    number = {layer: n for n, layer in enumerate(layers)}
    return [(number[layer], expert) for layer, expert in experts if layer in number]


def counts_of(counts: RouteCounts, layers: Sequence[int]) -> RouteCounts:
    """The routes of some layers."""
    rows = list(layers)
    return replace(counts, decode_LE=counts.decode_LE[rows], prefill_LE=counts.prefill_LE[rows])


def calibration_of(calibration: Calibration, layers: Sequence[int]) -> Calibration:
    """The times of some layers."""
    number = {layer: n for n, layer in enumerate(layers)}
    mine = [
        replace(group, layers=tuple(number[layer] for layer in group.layers if layer in number))
        for group in calibration.groups
    ]
    return replace(calibration, groups=tuple(group for group in mine if group.layers))


def refuse_others(loaded: LoadedModel, plan: Residency | None, counts: RouteCounts | None) -> None:
    """Raises: SetupError: a plan or routes of a model of another shape."""
    shape = sum(len(part.layers) for part in loaded.parts), loaded.parts[0].store.experts
    for what, found in (
        ("--residency", None if plan is None else (plan.layers, plan.experts)),
        ("--routes", None if counts is None else counts.shape),
    ):
        if found is not None and found != shape:
            raise SetupError(
                f"{what} is for {found[0]} x {found[1]} experts, the model has {shape[0]} x {shape[1]}; "
                + ("plan it again" if what == "--residency" else "record them again")
            )
