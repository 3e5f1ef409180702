"""Tokens a second, aggregated over an engine's turns, and milliseconds a token of the prompt."""

from analysis.summary import Summary
from analysis.tables.table import Cell, Column, Table, number, words
from analysis.throughput import DECODE_FROM, PREFILL_FROM, Aggregate, throughput


def rate_table(part: Summary) -> Table:
    engines = [engine for engine in part.engines if engine.sessions]
    found = [throughput(part.turns[part.turns["engine"] == engine.key]) for engine in engines]
    return Table(
        name="tokens_per_second",
        title="Tokens a second",
        heads=(
            Column("engine", "engine"),
            *(
                Column(f"prefill, ≥ {at_least:,} new tokens, {who}", f"prefill_{at_least}_{who}_tokens_per_s")
                for who in ("client", "engine")
                for at_least in PREFILL_FROM
            ),
            Column(f"decode, ≥ {DECODE_FROM} generated", "decode_tokens_per_s"),
            Column("decode, median", "decode_median_tokens_per_s"),
            Column("ms per prompt token", "ms_per_prompt_token"),
            Column("ms per new token", "ms_per_new_token"),
        ),
        lines=tuple(
            (
                words(engine.label),
                *(_aggregate(each, "no turn has as many new tokens") for each in rates.prefill),
                *(
                    _aggregate(each, "the engine does not report it on each such turn, or there is none")
                    for each in rates.server_prefill
                ),
                _aggregate(rates.decode, "no turn generated as many tokens"),
                number(rates.decode_median, _digits, why="no turn generated as many tokens"),
                number(rates.ms_per_prompt_token, _digits),
                number(rates.ms_per_new_token, _digits),
            )
            for engine, rates in zip(engines, found, strict=True)
        ),
        engines=tuple(engine.key for engine in engines),
        formulas=(
            "prefill, client: Σ new tokens / Σ TTFT over the turns with as many new tokens; engine: Σ prefilled "
            "tokens / Σ prefill time as it reports them; n: turns",
            f"decode: Σ (n − 1) / Σ (last token − first) over the turns with ≥ {DECODE_FROM} generated; median: over "
            "those turns, of 1 / TPOT",
            "ms per prompt token = Σ request time / Σ prompt tokens, those in the cache too; ms per new token = "
            "Σ TTFT / Σ new tokens",
        ),
    )


def _aggregate(found: Aggregate, why: str) -> Cell:
    return number(found.rate, lambda value: f"{_digits(value)} (n={found.turns:,})", why=why)


def _digits(value: float) -> str:
    return f"{value:,.1f}" if value >= 100 else f"{value:,.3g}"
