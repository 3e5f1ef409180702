"""Measures an engine's costs on its machine: decode steps and their parts, the link, the prefill paths side by side.

The constants of the Ostinato paper (section 3.4, appendix B): C(r), the CPU branch with r cold routes; G, the GPU
branch; one expert's upload; a step without its experts; and passes of 32 to 2048 tokens on each path.
"""

import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch

from engines.ostinato import rates
from engines.ostinato.branch_costs import compute_ms, device_ms, service_ms
from engines.ostinato.engine import Engine
from engines.ostinato.planner import explain
from engines.ostinato.planner.calibration import PATHS, Calibration, LayerGroup, PrefillPoint
from engines.ostinato.planner.model_shape import ModelShape

# Shapes: T = tokens, K = experts a token, D = hidden size.

SIZES = (32, 64, 128, 256, 512, 1024, 2048)
_ROUNDS = 3
_STEPS = 32


def measure(engine: Engine, shape: ModelShape, say: Callable[[str], None]) -> Calibration:
    """Everything; the engine's sequence is lost, and a captured step can't be used any more."""
    experts, K = engine.experts, shape.experts_per_token
    resident = int((experts.pool.slot_LE[experts.pool.slot_LE < experts.pool.slots] >= 0).sum())
    say("measuring prefill paths")
    sweep = tuple(_sweep(engine, say))
    say("measuring decode steps")
    step_ms = _decode_ms(engine)
    gpu_ms = device_ms(experts, K)
    say("measuring the link")
    upload_ms = rates.measure(experts).upload_ms
    say("measuring the CPU")
    if engine.graph is not None:
        engine.graph.service.stop()
        cpu_ms = service_ms(experts.cpu, experts.pool.store, K)
        dense_ms = max(0.0, step_ms - _experts_ms(engine, cpu_ms, gpu_ms))
    else:
        cpu_ms = compute_ms(experts.cpu, experts.pool.store, K)
        dense_ms = _dense_ms(engine)
    store = experts.pool.store
    return Calibration(
        groups=(LayerGroup(layers=tuple(range(store.layers)), cpu_ms=cpu_ms, gpu_ms=gpu_ms, upload_ms=upload_ms),),
        dense_step_ms=dense_ms,
        prefill=sweep,
        model_hash=shape.model_hash,
        machine=_machine(engine),
        decode_step_ms=step_ms,
        resident_experts=resident,
    )


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


def _decode_ms(engine: Engine) -> float:
    """The middle step after a short prompt, recorded tokens forced so that routes vary."""
    draw = np.random.default_rng(1)
    prompt = draw.integers(0, engine.vocab_size, min(64, engine.context // 2)).tolist()
    forced = draw.integers(0, engine.vocab_size, min(_STEPS, engine.context // 2)).tolist()
    engine.reset()
    engine.prefill(prompt)
    times, last = [], perf_counter()
    for _ in engine.decode(forced[0], len(forced), forced):
        times.append(perf_counter() - last)
        last = perf_counter()
    return median(times) * 1e3


def _dense_ms(engine: Engine) -> float:
    """A step whose experts do nothing."""
    engine.experts.captured = lambda _layer, x_TD, _ids_TK, _weights_TK: torch.zeros_like(x_TD)
    try:
        return _decode_ms(engine)
    finally:
        engine.experts.captured = None
        engine.reset()


def _experts_ms(engine: Engine, cpu_ms: tuple[float, ...], gpu_ms: float) -> float:
    """The MoE layers' part of the last request's steps: all layers as if each had the mean number of cold routes."""
    layers, steps = engine.experts.pool.store.layers, min(_STEPS, engine.context // 2)
    cold = engine.experts.cpu_experts / steps / layers
    return layers * max(float(np.interp(cold, range(len(cpu_ms)), cpu_ms)), gpu_ms)


def _machine(engine: Engine) -> dict[str, str]:
    device, cpu = engine.experts.pool.device, engine.experts.cpu
    info = Path("/proc/cpuinfo")
    names = (
        [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.is_file() else []
    )
    return {
        "processor": names[0].partition(":")[2].strip() if names else platform.processor(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": str(cpu.threads),
        "instructions": cpu.isa,
        "torch": str(torch.__version__),
    }
