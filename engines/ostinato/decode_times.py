"""Decode steps of an engine by the clock: as they are, without cold routes, and without their experts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import numpy as np
import torch

from engines.ostinato.engine import Engine
from engines.ostinato.planner.routes import RouteCounts

# Shapes: L = MoE layers, E = experts, K = experts a token, R = numbers of cold routes, 0 … K.

_STEPS = 32
_CAPTURED_STEPS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSteps:
    ms: float
    """The middle one."""
    cold_shares: tuple[tuple[float, ...], ...]
    """How often each layer had 0, 1, … K cold routes, ``[L, R]``, were the experts of a step chosen independently:
    all that is counted is how often the CPU computed each of them."""
    cold_layers: float | None = None
    """Layers of a step that had any, counted; None outside a captured step."""
    cpu_busy_ms: float | None = None
    """What the CPU's service worked in a step."""


def measured_steps(engine: Engine, K: int) -> DecodeSteps:
    """Steps after a short prompt, drawn tokens forced so that routes vary."""
    forced = _start(engine)
    _times(engine, forced[:2])  # whatever was counted before is some other step's
    forced = _start(engine)
    before_LE = engine.experts.cpu_uses_LE.copy()
    before = engine.graph.service.stats() if engine.graph is not None else None
    times = _times(engine, forced)
    counts = RouteCounts(
        decode_LE=engine.experts.cpu_uses_LE - before_LE,
        prefill_LE=np.zeros_like(before_LE),
        decode_steps=len(times),
        prefill_tokens=0,
        experts_per_token=K,
        model_hash="",
        workload_hash="",
    )
    cold = counts.cold(np.zeros(before_LE.shape, bool))
    steps = DecodeSteps(ms=median(times), cold_shares=tuple(tuple(row) for row in cold.share_LR.tolist()))
    if engine.graph is None or before is None:
        return steps
    after = engine.graph.service.stats()
    return replace(
        steps,
        cold_layers=(after.jobs - before.jobs) / len(times),
        cpu_busy_ms=(after.busy_ns - before.busy_ns) / 1e6 / len(times),
    )


def without_cold_routes_ms(engine: Engine) -> float:
    """A step in which every route finds a slot: the dense part and K experts a layer on the device.

    For these steps each expert's entry in the table names the block of some resident, one after the other so that
    none is read twice from the device's cache. What they compute is nonsense of the right shape and time.

    Raises:
        AssertionError: nobody is resident.
    """
    forced, pool = _start(engine), engine.experts.pool
    kept_LE = pool.slot_LE.copy()
    filled = np.sort(kept_LE[(kept_LE >= 0) & (kept_LE < pool.slots)])
    assert len(filled), "nobody is resident"
    try:
        pool.slot_LE = filled[np.arange(kept_LE.size) % len(filled)].reshape(kept_LE.shape)
        pool.publish()
        return median(_times(engine, forced))
    finally:
        pool.slot_LE = kept_LE
        pool.publish()
        engine.reset()


def dense_ms(engine: Engine) -> float:
    """A step whose experts do nothing; outside a captured step."""
    engine.experts.captured = lambda _layer, x_TD, _ids_TK, _weights_TK: torch.zeros_like(x_TD)
    try:
        return median(_times(engine, _start(engine)))
    finally:
        engine.experts.captured = None
        engine.reset()


def _start(engine: Engine) -> list[int]:
    """Prefill a short prompt; the tokens to force after it."""
    draw = np.random.default_rng(1)
    half = engine.context // 2
    prompt: list[int] = draw.integers(0, engine.vocab_size, min(64, half)).tolist()
    steps = _STEPS if engine.graph is None else _CAPTURED_STEPS
    forced: list[int] = draw.integers(0, engine.vocab_size, min(steps, half)).tolist()
    engine.reset()
    engine.prefill(prompt)
    return forced


def _times(engine: Engine, forced: Sequence[int]) -> list[float]:
    """Milliseconds of each step. The first one holds what a request's start takes."""
    times, last = [], perf_counter()
    for _ in engine.decode(forced[0], len(forced), list(forced)):
        times.append((perf_counter() - last) * 1e3)
        last = perf_counter()
    return times
