"""One row an engine: the table that a reader quotes, and where its time goes."""

from collections.abc import Sequence

from analysis.compare import TURN_KINDS, Comparison
from analysis.summary import EngineSummary, Summary
from analysis.tables import formulas as said
from analysis.tables.table import (
    Cell,
    Column,
    Line,
    Table,
    absent,
    count,
    ends,
    median,
    percent,
    seconds,
    share,
    words,
)
from analysis.wording import KIND_WORDS

UNFINISHED = "the engine finished no session that counts"


def engine_table(summary: Summary) -> Table:
    """The table of the verdict."""
    against = {c.candidate: c for c in summary.comparisons if c.baseline == summary.baseline}
    kinds = [kind for kind in TURN_KINDS if any(kind in engine.medians.ttft for engine in summary.engines)]
    return Table(
        name="engines",
        title="Engines",
        heads=(
            Column("engine", "engine"),
            Column("total request time", "total_request_s"),
            Column("saved", "saved_percent"),
            Column("95 % interval", "saved_interval_percent"),
            Column("percentile", "saved_percentile_interval_percent"),
            Column("won", "won_sessions"),
            *(
                Column(f"TTFT {KIND_WORDS[kind]}{_turns(summary.engines, kind)}", f"ttft_{kind}_s")
                for kind in kinds
            ),
            Column("TPOT", "tpot_ms"),
            Column("verified", "verified_turns"),
            Column("prefill as expected", "prefill_as_expected_turns"),
        ),
        lines=tuple(_engine(engine, against.get(engine.key), summary, kinds) for engine in summary.engines),
        engines=tuple(engine.key for engine in summary.engines),
        formulas=(
            said.TOTAL, said.SAVED, said.BOOTSTRAP_T, said.WON, said.TTFT, said.TPOT, said.MEDIANS, said.VERIFIED,
            said.PREFILL,
        ),
    )  # fmt: skip


def _turns(engines: Sequence[EngineSummary], kind: str) -> str:
    """`` (80)`` where every engine has as many turns of this kind; else each cell says its own."""
    counts = {engine.medians.ttft[kind].turns for engine in engines if kind in engine.medians.ttft}
    return f" ({counts.pop():,})" if len(counts) == 1 else ""


def _engine(engine: EngineSummary, against: Comparison | None, summary: Summary, kinds: Sequence[str]) -> Line:
    baseline = engine.key == summary.baseline
    ttft = [(engine.medians.ttft.get(kind), not _turns(summary.engines, kind)) for kind in kinds]
    return (
        words(engine.label + (" (baseline)" if baseline else "")),
        seconds(engine.total_request_s, why=UNFINISHED),
        *_saved(against, "the baseline itself" if baseline else "not compared with the baseline"),
        *(
            median(found, note=f", {found.turns:,} turns" if found and counted_alone else "")
            for found, counted_alone in ttft
        ),
        median(engine.medians.tpot, "ms", why="no turn tells a TPOT"),
        share(engine.turns_verified, engine.turns_replayed, why="no turn was replayed"),
        share(engine.prefill_as_expected, engine.prefill_reported, why="the engine does not report it"),
    )


def _saved(against: Comparison | None, why: str) -> tuple[Cell, ...]:
    if against is None:
        return (absent(why),) * 4
    return (
        percent(against.saved),
        ends(against.interval, why=said.FEW),
        ends(against.percentile, why=said.FEW),
        share(against.won, against.sessions, why=why),
    )


def phase_table(summary: Summary) -> Table:
    """Where the time goes, as the client saw it and as the engine reports it."""
    engines = [engine for engine in summary.engines if engine.sessions]
    return Table(
        name="phases",
        title="Prefill and decode",
        heads=(
            Column("engine", "engine"),
            Column("prefill, client", "prefill_client_s"),
            Column("prefill, engine", "prefill_engine_s"),
            Column("difference", "prefill_difference_s"),
            Column("decode, client", "decode_client_s"),
            Column("decode, engine", "decode_engine_s"),
            Column("difference", "decode_difference_s"),
            Column("first chunks of several tokens", "merged_first_chunks"),
        ),
        lines=tuple(
            (
                words(engine.label),
                *_both(engine.client_prefill_s, engine.server_prefill_s),
                *_both(engine.client_decode_s, engine.server_decode_s),
                count(engine.first_chunk_merged),
            )
            for engine in engines
        ),
        engines=tuple(engine.key for engine in engines),
        formulas=(
            "client: prefill = Σ TTFT, decode = Σ (arrival of the last token − arrival of the first)",
            "engine: Σ of what it reports, – unless it reports it on every turn; difference = client − engine",
        ),
    )


def _both(client: float | None, server: float | None) -> tuple[Cell, ...]:
    why = "the engine does not report it on every turn"
    return (
        seconds(client),
        seconds(server, why=why),
        seconds(None if client is None or server is None else client - server, why=why),
    )
