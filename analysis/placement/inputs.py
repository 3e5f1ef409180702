"""What the lab starts from: routes, sizes, memory and times, checked against each other."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from analysis.placement import study
from analysis.placement.machines import GIB, Machine
from analysis.placement.study import Room, Routes, Sizes
from engines.ostinato.commands import pool_bytes
from engines.ostinato.errors import SetupError
from engines.ostinato.planner import calibration as calibrations
from engines.ostinato.planner import routes as recorded
from engines.ostinato.planner.calibration import Calibration
from engines.ostinato.planner.model_shape import ModelShape
from engines.ostinato.planner.plan import MARGIN_BYTES
from engines.ostinato.planner.routes import RouteCounts

SHARES = (0.1, 0.25, 0.44, 0.6, 0.8)
"""Of all experts, where no memory is named."""
DRAWN_STEPS = 1000


def read_routes(judged: Path, development: Path | None) -> Routes:
    """Raises: SetupError: a file that can't be read, no decode step, files of two models."""
    found = recorded.read(judged)
    learnt = recorded.read_counts(development) if development else None
    if learnt is not None and (learnt.model_hash != found.model_hash or learnt.shape != found.shape):
        raise SetupError(f"{development} and {judged} are of different models; record both with one")
    if isinstance(found, RouteCounts):
        trace = study.draw(found, DRAWN_STEPS, np.random.default_rng(0))
        return Routes(development=learnt or found, judged=trace, drawn=True)
    if not len(found.experts_NLK):
        raise SetupError(f"{judged} holds no decode step; record sessions whose turns have output")
    return study.halves(found) if learnt is None else Routes(development=learnt, judged=found)


def sizes_of(
    routes: Routes,
    *,
    shape: ModelShape | None,
    expert_size: int | None,
    machine: Machine | None,
    gpus: int,
    borrowed: int,
    sized: bool,
) -> Sizes:
    """What an expert takes: the model's, else what was typed, else what the machine's own model has.

    Args:
        sized: whether memory is given in bytes, so that sizes must be known.

    Raises:
        SetupError: another model than the routes', or no size where one is needed.
    """
    layers, experts = routes.judged.shape
    own: Mapping[str, int] = machine.model if machine else {}
    if shape is not None and (len(shape.moe_layers), shape.experts) != (layers, experts):
        raise SetupError(
            f"--model has {len(shape.moe_layers)} layers of {shape.experts} experts, the routes {layers} "
            f"of {experts}; name the model that they were recorded with"
        )
    if shape is not None:
        each = shape.expert_bytes
    elif expert_size:
        each = (expert_size,) * layers
    elif (own.get("layers"), own.get("experts")) == (layers, experts):
        each = (own["expert_bytes"],) * layers
    elif machine is not None or sized:
        raise SetupError("an expert's size is not known; add --model or --expert-size")
    else:
        each = (1,) * layers
    return Sizes(
        expert_bytes=each,
        gpus=study.spread(layers, machine.gpus if machine else gpus),
        borrowed_bytes=borrowed or (machine.borrowed_bytes if machine else 0),
    )


def rooms_of(
    budgets: Sequence[int],
    routes: Routes,
    sizes: Sizes,
    *,
    shape: ModelShape | None,
    machine: Machine | None,
    context: int,
) -> list[Room]:
    """Memory for experts: what the budgets leave, the machine's, or shares of all experts.

    Raises:
        SetupError: a budget too small for what is no expert.
    """
    last = len(sizes.gpus) - 1
    if shape is not None and budgets:
        return [
            Room(
                name=f"{gib(budget)} on each GPU",
                pool_bytes=tuple(
                    left_for_experts(shape, layers, budget, context, first=not gpu, last=gpu == last)
                    for gpu, layers in enumerate(sizes.gpus)
                ),
            )
            for budget in budgets
        ]
    if budgets:
        return [
            Room(name=f"{gib(each)} for experts on each GPU", pool_bytes=(each,) * (last + 1)) for each in budgets
        ]
    if machine is not None:
        return [Room(name=f"the memory of {machine.name}", pool_bytes=(machine.pool_bytes,) * (last + 1))]
    totals = [routes.judged.experts * sum(sizes.expert_bytes[layer] for layer in layers) for layers in sizes.gpus]
    return [
        Room(name=f"{share:.0%} of the experts", pool_bytes=tuple(int(share * total) for total in totals))
        for share in SHARES
    ]


def left_for_experts(shape: ModelShape, layers: range, budget: int, context: int, *, first: bool, last: bool) -> int:
    """Raises: SetupError: the budget does not hold the rest."""
    try:
        return pool_bytes(shape, layers, budget, context, MARGIN_BYTES, first=first, last=last)
    except SetupError as error:
        raise SetupError(str(error).replace("--vram-budget", "--budget")) from error  # as it is called here


def calibration_of(file: Path | None, routes: Routes, sizes: Sizes, machine: Machine | None) -> Calibration | None:
    """The machine's times: measured, published, or none.

    Raises:
        SetupError: a file that can't be read, or of another model.
    """
    name = routes.judged.model_hash
    if file is not None:
        found = calibrations.read(file)
        if found.model_hash != name:
            raise SetupError(
                f"{file} is of model {found.model_hash}, the routes of {name}; calibrate with that model"
            )
        return found
    if machine is None:
        return None
    k = routes.judged.experts_NLK.shape[2]
    return machine.calibration(sizes.expert_bytes, experts_per_token=k, model_hash=name)


def anchored(calibration: Calibration, routes: Routes, sizes: Sizes) -> Calibration:
    """The calibration with as much time outside its MoE layers as makes the predicted step the one it measured.

    Its parts are measured one by one; what a whole step has beside them (launches, hand-overs) is in no part. Nothing
    changes where no whole step was measured.
    """
    if calibration.decode_step_ms is None or calibration.resident_experts is None:
        return calibration
    gpus = len(sizes.gpus)
    each = [
        calibration.resident_experts * (gpu + 1) // gpus - calibration.resident_experts * gpu // gpus
        for gpu in range(gpus)
    ]
    room = Room(name="as calibrated", pool_bytes=tuple(slots * max(sizes.expert_bytes) for slots in each))
    ((_, then),) = study.outcomes(routes, sizes, [room], calibration=calibration, policies=["ostinato:borrow=false"])
    assert then.decode_step_ms is not None
    more_ms = calibration.decode_step_ms - then.decode_step_ms
    return replace(calibration, dense_step_ms=max(calibration.dense_step_ms + more_ms, 0.0))


def gib(value: int) -> str:
    return f"{value / GIB:g} GiB"
