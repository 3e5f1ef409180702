"""Tokens a second of a log's requests: aggregates (Σ tokens / Σ time) and medians over requests."""

from dataclasses import dataclass

import numpy as np

from analysis.server_logs.requests import Floats, Log

PREFILL_FROM = (256, 4_000)
"""New tokens from which a request tells of prefill: with fewer, fixed costs are most of the time."""
DECODE_FROM = 32
"""Generated tokens from which a request tells of decode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Over the requests that count; the rates are None when there is none."""

    phase: str
    """``prefill`` or ``decode``."""
    at_least: int
    """New tokens, or generated ones."""
    requests: int
    tokens: int
    """Prefilled ones, or decode steps."""
    seconds: float
    aggregate: float | None
    """Σ tokens / Σ time."""
    median: float | None
    """Over requests, of tokens / time."""


@dataclass(frozen=True, slots=True)
class WindowRate:
    """Of a server's own averages, those with one request running."""

    windows: int
    median: float | None


def prefill(log: Log, at_least: int) -> Rate:
    tokens = log.column("new_tokens")
    return _rate("prefill", at_least, tokens, log.column("prefill_s"), tokens >= at_least)


def decode(log: Log, at_least: int = DECODE_FROM) -> Rate:
    return _rate("decode", at_least, log.column("steps"), log.column("decode_s"), log.column("generated") >= at_least)


def alone(log: Log) -> WindowRate:
    running, rate = np.asarray(log.running, np.float64), np.asarray(log.generated_per_s, np.float64)
    counted = rate[(running == 1) & (rate > 0)]
    return WindowRate(len(counted), float(np.median(counted)) if len(counted) else None)


def rates(log: Log) -> list[Rate]:
    return [*(prefill(log, at_least) for at_least in PREFILL_FROM), decode(log)]


def _rate(phase: str, at_least: int, tokens_N: Floats, seconds_N: Floats, wanted_N: np.ndarray) -> Rate:
    with np.errstate(invalid="ignore"):
        counted = wanted_N & np.isfinite(seconds_N) & (seconds_N > 0) & np.isfinite(tokens_N)
    tokens, seconds = tokens_N[counted], seconds_N[counted]
    some = bool(len(tokens))
    return Rate(
        phase=phase,
        at_least=at_least,
        requests=len(tokens),
        tokens=int(tokens.sum()),
        seconds=float(seconds.sum()),
        aggregate=float(tokens.sum() / seconds.sum()) if some else None,
        median=float(np.median(tokens / seconds)) if some else None,
    )
