"""Tokens a second over an engine's turns, aggregated: Σ tokens / Σ time, as a server's log is read too."""

from dataclasses import dataclass

import pandas as pd

PREFILL_FROM = (256, 4_000)
DECODE_FROM = 32


@dataclass(frozen=True, slots=True)
class Aggregate:
    """``rate`` is None where no turn counts, or where the engine does not report it on all of them."""

    rate: float | None
    turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    prefill: tuple[Aggregate, ...]
    """Turns with ≥ each of ``PREFILL_FROM`` new tokens: Σ new tokens / Σ TTFT."""
    server_prefill: tuple[Aggregate, ...]
    """The same turns: Σ prefilled tokens / Σ prefill time, both as the engine reports them."""
    decode: Aggregate
    """Turns with ≥ ``DECODE_FROM`` generated: Σ (n − 1) / Σ decode time."""
    decode_median: float | None
    """Over those turns: 1 / TPOT."""
    ms_per_prompt_token: float | None
    """Σ request time / Σ tokens of the prompts, those in the cache too."""
    ms_per_new_token: float | None
    """Σ TTFT / Σ new tokens."""


def throughput(turns: pd.DataFrame) -> Throughput:
    """Of one engine's measured turns."""
    large = [turns[turns["new_tokens"] >= at_least] for at_least in PREFILL_FROM]
    long = turns[(turns["output_tokens"] >= DECODE_FROM) & turns["tpot_s"].notna()]
    steps = long["decode_s"].sum()
    return Throughput(
        prefill=tuple(_rate(part["new_tokens"], part["ttft_s"]) for part in large),
        server_prefill=tuple(_rate(part["prefilled_tokens"], part["server_prefill_s"]) for part in large),
        decode=Aggregate(
            float((long["output_tokens"] - long["first_chunk_tokens"].astype(float)).sum() / steps)
            if steps
            else None,
            len(long),
        ),
        decode_median=float((1 / long["tpot_s"]).median()) if len(long) and (long["tpot_s"] > 0).all() else None,
        ms_per_prompt_token=_per_token(turns["request_s"], turns["prompt_tokens"]),
        ms_per_new_token=_per_token(turns["ttft_s"], turns["new_tokens"]),
    )


def _rate(tokens: "pd.Series[float]", seconds: "pd.Series[float]") -> Aggregate:
    total = seconds.sum()
    if not len(tokens) or tokens.isna().any() or seconds.isna().any() or not total:
        return Aggregate(None, len(tokens))
    return Aggregate(float(tokens.sum() / total), len(tokens))


def _per_token(seconds: "pd.Series[float]", tokens: "pd.Series[int]") -> float | None:
    return float(1e3 * seconds.sum() / tokens.sum()) if tokens.sum() and not seconds.isna().any() else None
