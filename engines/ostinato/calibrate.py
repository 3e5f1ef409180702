"""Measures an engine's costs on its machine: decode steps and their parts, the link, the prefill paths side by side.

The constants of the Ostinato paper (section 3.4, appendix B): C(r), the CPU branch with r cold routes; G, the GPU
branch; one expert's upload; a step without its experts; and passes of 32 to 2048 tokens on each path.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import median
from time import perf_counter

import numpy as np

from engines.ostinato import calibrated, rates
from engines.ostinato.branch_costs import compute_ms, device_ms, service_ms
from engines.ostinato.decode_times import dense_ms, measured_steps, without_cold_routes_ms
from engines.ostinato.engine import Engine
from engines.ostinato.planner import explain
from engines.ostinato.planner.calibration import PATHS, Calibration, LayerGroup, PrefillPoint
from engines.ostinato.planner.model_shape import ModelShape

# Shapes: T = tokens, K = experts a token, D = hidden size.

SIZES = (32, 64, 128, 256, 512, 1024, 2048)
_ROUNDS = 3


def measure(
    engine: Engine, shape: ModelShape, say: Callable[[str], None], *, derive_dense: bool = False
) -> Calibration:
    """Everything; the engine's sequence is lost, and a captured step can't be used any more.

    Args:
        derive_dense: take the dense part of a captured step for what the model's branches leave of it, instead of
            measuring a step whose routes all go to slots. The bound then says nothing of such a step.
    """
    experts, K = engine.experts, shape.experts_per_token
    resident = int((experts.pool.slot_LE[experts.pool.slot_LE < experts.pool.slots] >= 0).sum())
    say("measuring prefill paths")
    sweep = tuple(_sweep(engine, say))
    say("measuring decode steps")
    steps = measured_steps(engine, K)
    gpu_ms = device_ms(experts, K)
    say("measuring the link")
    uploads = experts.shares.rates if experts.staging is not None else rates.measure(experts)
    say("measuring the CPU")
    all_resident_ms = None
    if engine.graph is not None:
        if not derive_dense:
            all_resident_ms = without_cold_routes_ms(engine)
        engine.graph.service.stop()
        cpu_ms = service_ms(experts.cpu, experts.pool.store, K)
    else:
        cpu_ms = compute_ms(experts.cpu, experts.pool.store, K)
    layers = experts.pool.store.layers
    group = LayerGroup(
        layers=tuple(range(layers)),
        cpu_ms=cpu_ms,
        gpu_ms=gpu_ms,
        upload_ms=uploads.upload_ms,
        rates=uploads if experts.staging is not None else None,
    )
    found = Calibration(
        groups=(group,),
        dense_step_ms=0.0,
        prefill=sweep,
        model_hash=shape.model_hash,
        machine=calibrated.machine(experts.pool.device, experts.cpu, experts.pool.store.layout.dtype),
        decode_step_ms=steps.ms,
        resident_experts=resident,
        all_resident_step_ms=all_resident_ms,
        cold_shares=steps.cold_shares,
        cold_layers=steps.cold_layers,
        cpu_busy_ms=steps.cpu_busy_ms,
    )
    if engine.graph is None:
        dense = dense_ms(engine)
    elif all_resident_ms is None:
        dense = max(0.0, steps.ms - (found.bound_ms() or 0.0))
    else:
        dense = max(0.0, all_resident_ms - layers * gpu_ms)
    return replace(found, dense_step_ms=dense)


def table(calibration: Calibration) -> str:
    """The sweep, fastest path named, and the decode constants."""
    rows = [["tokens", *(f"{path} ms" for path in PATHS), "fastest"]]
    for point in calibration.prefill:
        times = {path: ms for path in PATHS if (ms := point.ms(path)) is not None}
        cells = [f"{times[path]:.1f}" if path in times else "-" for path in PATHS]
        rows.append([str(point.tokens), *cells, min(times, key=lambda path: times[path])])
    group = calibration.groups[0]
    threshold = calibration.threshold()
    return "\n".join(
        [
            explain.table(rows),
            "uploading is never faster than splitting"
            if threshold is None
            else f"uploading is faster than splitting from {threshold} tokens on",
            "CPU branch, ms with 0, 1, … cold routes: " + " ".join(f"{ms:.3f}" for ms in group.cpu_ms),
            f"GPU branch {group.gpu_ms:.3f} ms, one upload {group.upload_ms:.3f} ms",
            f"decode step {calibration.decode_step_ms:.2f} ms, without experts {calibration.dense_step_ms:.2f} ms",
            *explain.bound_of(calibration),
        ]
    )


def _sweep(engine: Engine, say: Callable[[str], None]) -> Iterator[PrefillPoint]:
    """Whole prefills from nothing; the middle of a few, each of other tokens."""
    draw = np.random.default_rng(0)
    for tokens in (size for size in SIZES if size <= engine.context):
        say(f"measuring prefills of {tokens} tokens")
        prompts = draw.integers(0, engine.vocab_size, (_ROUNDS + 1, tokens)).tolist()
        times = {}
        for path in PATHS:
            engine.experts.shares.path = path
            rounds = [_prefill_ms(engine, prompt) for prompt in prompts]
            times[f"{path}_ms"] = median(rounds[1:])
        yield PrefillPoint(tokens=tokens, **times)
    engine.experts.shares.path = "auto"


def _prefill_ms(engine: Engine, prompt: list[int]) -> float:
    engine.reset()
    began = perf_counter()
    engine.prefill(prompt)
    return (perf_counter() - began) * 1e3
