"""Energy of a span of time, from samples of power and of energy counters."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from replay.telemetry.store import Rows, Telemetry

Span = tuple[int, int]
Series = Sequence[tuple[int, float]]
Part = Callable[[float, float, float], float]
LONGEST_GAP = 3.5
"""Sampling intervals without a sample, above which the power between is not known."""


def by_session(telemetry: Telemetry, spans: Mapping[str, Span]) -> dict[str, dict[str, float | None]] | None:
    """Joules of all GPUs and of the CPU packages between each session's first request and its last byte.

    Sessions that run at the same time share the machine: each is given the whole of it.

    Args:
        spans: session → ``(start_ns, end_ns)`` on the samples' clock.

    Returns:
        session → ``{"gpu_j", "cpu_j"}``, None where samples do not cover it; None where no power was read at all.
    """
    rows, longest_ns = telemetry.rows, LONGEST_GAP * (telemetry.every_s or 0) * 1e9
    names = sorted({name for row in rows for name in row if name.startswith("gpu") and name.endswith("_power_w")})
    gpus, cpu = [series(rows, name) for name in names], series(rows, "cpu_energy_j")
    if not gpus and not cpu:
        return None
    energies: dict[str, dict[str, float | None]] = {}
    for session, span in spans.items():
        joules = [integral(gpu, span, longest_ns) for gpu in gpus]
        known = [value for value in joules if value is not None]
        energies[session] = {
            "gpu_j": sum(known) if joules and len(known) == len(joules) else None,
            "cpu_j": growth(cpu, span, longest_ns),
        }
    return energies


def series(rows: Rows, name: str) -> Series:
    """``(t_ns, value)`` of the samples that have the field."""
    return [(int(row["t_ns"]), float(row[name])) for row in rows if name in row]


def integral(power: Series, span: Span, longest_ns: float) -> float | None:
    """∫ power dt over the span by the trapezoidal rule, the ends interpolated; None where samples do not cover it."""
    return _over(power, span, longest_ns, lambda low, high, seconds: (low + high) / 2 * seconds)


def growth(counter: Series, span: Span, longest_ns: float) -> float | None:
    """What a counter grew by over the span, the ends interpolated; None where samples do not cover it."""
    return _over(counter, span, longest_ns, lambda low, high, _: high - low)


def _over(points: Series, span: Span, longest_ns: float, part: Part) -> float | None:
    start, end = span
    first, last = bisect_right(points, (start, math.inf)) - 1, bisect_left(points, (end, -math.inf))
    if first < 0 or last == len(points):
        return None
    total = 0.0
    for (t0, v0), (t1, v1) in pairwise(points[first : last + 1]):
        if t1 - t0 > longest_ns:
            return None
        low, high = max(t0, start), min(t1, end)
        slope = (v1 - v0) / (t1 - t0)
        total += part(v0 + slope * (low - t0), v0 + slope * (high - t0), (high - low) / 1e9)
    return total
