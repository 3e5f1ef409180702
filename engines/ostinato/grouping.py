"""The groups of an engine: for each device and each size of expert a pool, what computes it, and who lies in it."""

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from engines.ostinato import placing
from engines.ostinato.cpu.library import open_cpu_experts
from engines.ostinato.device_branch import DeviceBranch, TorchBranch
from engines.ostinato.errors import SetupError
from engines.ostinato.expert_layout import ExpertLayout
from engines.ostinato.experts import Experts, per_token
from engines.ostinato.loading import LoadedModel
from engines.ostinato.lru import Lru
from engines.ostinato.placement.registry import policy as named_policy
from engines.ostinato.planner.calibration import Calibration
from engines.ostinato.planner.residency import Residency
from engines.ostinato.planner.routes import RouteCounts
from engines.ostinato.pool import ExpertPool
from engines.ostinato.shares import Rates, Shares
from engines.ostinato.staging import Staging

_STAGED = 32
"""Experts that the staging buffer holds, in two halves."""
_AHEAD = 6
"""Experts of the next layer that are uploaded before its routes are known: as many as the link carries meanwhile."""
_NO_RATES = Rates(upload_ms=1.0, cpu_tokens=(1.0,), cpu_ms=(1.0,))


def empty_groups(
    loaded: LoadedModel, placement: str, calibration: Calibration | None, threads: int | None, *, stages_uploads: bool
) -> list[Experts]:
    """One a part of the model, without slots yet; the model's experts come to them.

    All share the CPU's threads: a token is in one layer at a time, so whichever device asks has all of them, over all
    memory channels.

    Args:
        stages_uploads: give each a staging buffer.
    """
    on_gpu = loaded.stages.devices[0].type == "cuda"
    first, *_ = (part.store.layout for part in loaded.parts)
    cpu = open_cpu_experts(first, threads or _threads(on_gpu=on_gpu))
    groups = []
    for part in loaded.parts:
        store, device = part.store, loaded.stages.devices[part.stage]
        staged = min(_STAGED, 2 * store.experts)
        group = Experts(
            ExpertPool(store, device, 0),
            _branch(store.layout, on_gpu=on_gpu),
            cpu if store.layout == first else cpu.sharing(store.layout),
            Shares("upload", _NO_RATES),
            Staging(store, device, staged, _AHEAD if on_gpu else 0) if stages_uploads else None,
            named_policy(placement, calibration=calibration and placing.calibration_of(calibration, part.layers)),
            part.layers,
        )
        group.install(part.modules)
        groups.append(group)
    return groups


def fill(
    groups: Sequence[Experts],
    loaded: LoadedModel,
    rooms: Sequence[int],
    plan: Residency | None,
    counts: RouteCounts | None,
) -> None:
    """Give every group its slots and who lies in them at the start.

    Args:
        rooms: bytes of each device.

    Raises:
        SetupError: too few slots for the policy.
    """
    K = per_token(loaded.model.config)
    slots = [
        number for stage, room in enumerate(rooms) for number in _slots(stage, room, groups, loaded, plan, counts, K)
    ]
    for group, part, number in zip(groups, loaded.parts, slots, strict=True):
        store, policy, staging = part.store, group.policy, group.staging
        pool = ExpertPool(
            store,
            group.pool.device,
            number,
            lent=staging.blocks if staging is not None and policy.borrow else None,
            cold_LE=store.addresses if policy.miss == "stream" else None,
        )
        mine = placing.counts_of(counts, part.layers) if counts is not None else None
        planned = placing.of_layers(_planned(plan, part.stage), part.layers) if plan is not None else None
        pool.fill(placing.residents(part, number, policy, mine, planned, K))
        if mine is not None:
            group.early_L = _early(pool, mine)
        group.pool = pool
        if policy.miss == "fetch":
            group.lru = Lru(pool, per_layer=policy.lru_scope == "layer")
            if not all(group.lru.fits(layer, K) for layer in range(store.layers)):
                raise SetupError(
                    f"--placement {policy.name} brings all {K} experts of a token into slots, of which a layer has "
                    f"too few ({pool.slots} in all); raise --vram-budget or --slots"
                )


def _slots(
    stage: int,
    room: int,
    groups: Sequence[Experts],
    loaded: LoadedModel,
    plan: Residency | None,
    counts: RouteCounts | None,
    K: int,
) -> list[int]:
    here = [number for number, part in enumerate(loaded.parts) if part.stage == stage]
    space = placing.Room(parts=tuple(loaded.parts[number] for number in here), nbytes=room, experts_per_token=K)
    return placing.slots(
        space,
        replace(groups[here[0]].policy, calibration=None),
        placing.counts_of(counts, space.layers) if counts is not None else None,
        placing.of_layers(_planned(plan, stage), space.layers) if plan is not None else None,
    )


def _planned(plan: Residency, stage: int) -> list[tuple[int, int]]:
    pool = plan.pools[stage]
    return [*pool.resident, *pool.reserve]


def _threads(*, on_gpu: bool) -> int:
    cores = len(os.sched_getaffinity(0))
    return max(1, cores - 1) if on_gpu else cores  # with a GPU one core feeds it and streams the tokens


def _branch(layout: ExpertLayout, *, on_gpu: bool) -> DeviceBranch:
    if not on_gpu:
        return TorchBranch(layout)
    from engines.ostinato.gpu_branch import TritonBranch

    return TritonBranch(layout)


def _early(pool: ExpertPool, counts: RouteCounts) -> list[np.ndarray]:
    """Each layer's cold experts by the routes of recorded prefills."""
    shares_LE = np.where(pool.resident_LE, -1.0, counts.prefill_shares_LE)
    return [order[row[order] > 0] for row in shares_LE for order in [np.argsort(-row, kind="stable")]]
