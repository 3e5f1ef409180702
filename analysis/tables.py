"""The report's tables as text, each with the formulas of its columns: one form for page, Markdown and terminal."""

from collections.abc import Sequence
from dataclasses import dataclass

from analysis import wording
from analysis.compare import TURN_KINDS, Comparison
from analysis.stats import RESAMPLES, SMALLEST_SAMPLE
from analysis.summary import EngineSummary, Summary
from analysis.wording import ABSENT, KIND_WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    title: str
    columns: tuple[str, ...]
    """The first one names the row; the others hold numbers."""
    rows: tuple[tuple[str, ...], ...]
    formulas: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    """Key of each row's engine, where a row is one: the page shows its colour."""


SAVED = "saved = 1 − Σ candidate / Σ baseline, over the total request times of the sessions (a ratio of sums)"
BOOTSTRAP_T = (
    f"95 % interval: bootstrap-t with the linearised standard error, sessions resampled in pairs, "
    f"{RESAMPLES:,} times; percentile: the same resamples' percentile interval; none below {SMALLEST_SAMPLE} sessions"
)
TOTAL = (
    "total request time = Σ over a session's turns of (end of the stream − request sent), then Σ over sessions; "
    "a repeated session counts once, with its mean"
)
TTFT = "TTFT = arrival of the first generated token − request sent; queue time is not in it"
TPOT = (
    "TPOT = (arrival of the last token − arrival of the first) / (n − 1); (n − m) where the first chunk holds "
    "m tokens; no value where no token follows it"
)
MEDIANS = (
    f"medians over turns; (interval): 95 % percentile interval, sessions resampled with all their turns; "
    f"none below {SMALLEST_SAMPLE} sessions"
)
WON = "won: sessions that the engine finishes sooner than the baseline"
VERIFIED = "verified: turns whose every output token is the recorded one, of the turns of each session's last attempt"
PREFILL = (
    "prefill as expected: the engine reports that it computed the new tokens and nothing more (after the first turn "
    "one more, the last output token, which was never decoded), of the turns where it reports this"
)


def tables(summary: Summary) -> list[Table]:
    """Every table of the report, in its order; a table without rows is left out."""
    made = [
        engine_table(summary),
        comparison_table(summary),
        phase_table(summary),
        pressure_table(summary),
        workload_table(summary),
    ]
    return [table for table in made if table.rows]


def engine_table(summary: Summary) -> Table:
    """One row an engine: the table that a reader quotes."""
    against = {c.candidate: c for c in summary.comparisons if c.baseline == summary.baseline}
    kinds = [kind for kind in TURN_KINDS if any(kind in engine.medians.ttft for engine in summary.engines)]
    return Table(
        title="Engines",
        columns=(
            "engine", "total request time", "saved", "95 % interval", "percentile", "won",
            *(f"TTFT {KIND_WORDS[kind]}{_turns(summary.engines, kind)}" for kind in kinds),
            "TPOT", "verified", "prefill as expected",
        ),
        rows=tuple(_engine_row(engine, against.get(engine.key), summary, kinds) for engine in summary.engines),
        engines=tuple(engine.key for engine in summary.engines),
        formulas=(TOTAL, SAVED, BOOTSTRAP_T, WON, TTFT, TPOT, MEDIANS, VERIFIED, PREFILL),
    )  # fmt: skip


def _turns(engines: Sequence[EngineSummary], kind: str) -> str:
    """`` (80)`` where every engine has as many turns of this kind; else each cell says its own."""
    counts = {engine.medians.ttft[kind].turns for engine in engines if kind in engine.medians.ttft}
    return f" ({counts.pop():,})" if len(counts) == 1 else ""


def _engine_row(
    engine: EngineSummary, against: Comparison | None, summary: Summary, kinds: Sequence[str]
) -> tuple[str, ...]:
    counted_alone = {kind: not _turns(summary.engines, kind) for kind in kinds}
    baseline = engine.key == summary.baseline
    return (
        engine.label + (" (baseline)" if baseline else ""),
        wording.seconds(engine.total_request_s),
        wording.percent(against.saved) if against else ABSENT,
        wording.percent_interval(against.interval) if against else ABSENT,
        wording.percent_interval(against.percentile) if against else ABSENT,
        wording.share(against.won, against.sessions) if against else ABSENT,
        *(
            wording.median(median := engine.medians.ttft.get(kind))
            + (f", {median.turns:,} turns" if median and counted_alone[kind] else "")
            for kind in kinds
        ),
        wording.median(engine.medians.tpot, "ms"),
        wording.share(engine.turns_verified, engine.turns_replayed),
        wording.share(engine.prefill_as_expected, engine.prefill_reported),
    )


def comparison_table(summary: Summary) -> Table:
    """One row a pair, baseline pairs first."""
    return Table(
        title="Pairs of engines",
        columns=(
            "candidate / baseline", "saved", "95 % interval", "percentile", "won", "median saving",
            "leave one out", "effective sessions", "p", "TTFT after tool", "TPOT",
        ),
        rows=tuple(
            (
                f"{summary.label(c.candidate)} / {summary.label(c.baseline)}",
                wording.percent(c.saved),
                wording.percent_interval(c.interval),
                wording.percent_interval(c.percentile),
                wording.share(c.won, c.sessions),
                wording.percent(c.median_saved),
                f"{wording.percent(c.leave_one_out[0])} to {wording.percent(c.leave_one_out[1])}"
                if c.leave_one_out
                else ABSENT,
                f"{c.effective_sessions:.1f}",
                ABSENT if c.p_value is None else f"{c.p_value:.2g}",
                wording.ratio(c.ttft["tool"].ratio, c.ttft["tool"].ratio_interval) if "tool" in c.ttft else ABSENT,
                wording.ratio(c.tpot.ratio, c.tpot.ratio_interval) if c.tpot else ABSENT,
            )
            for c in summary.comparisons
        ),
        formulas=(
            SAVED,
            BOOTSTRAP_T,
            "median saving: median over sessions of 1 − candidate / baseline; leave one out: lowest and highest "
            "saved share when any one session is left out",
            "effective sessions = (Σ w)² / Σ w², w the baseline's time of a session",
            "p: two-sided sign-flip permutation test of the sessions' differences, each pair by itself",
            "TTFT, TPOT: the candidate's median over the baseline's, the same resampled sessions for both",
        ),
    )  # fmt: skip


def phase_table(summary: Summary) -> Table:
    """Where the time goes, as the client saw it and as the engine reports it."""
    engines = [engine for engine in summary.engines if engine.sessions]
    return Table(
        title="Prefill and decode",
        columns=(
            "engine", "prefill, client", "prefill, engine", "difference",
            "decode, client", "decode, engine", "difference", "first chunks of several tokens",
        ),
        rows=tuple(
            (
                engine.label,
                wording.seconds(engine.client_prefill_s),
                wording.seconds(engine.server_prefill_s),
                wording.seconds(_minus(engine.client_prefill_s, engine.server_prefill_s)),
                wording.seconds(engine.client_decode_s),
                wording.seconds(engine.server_decode_s),
                wording.seconds(_minus(engine.client_decode_s, engine.server_decode_s)),
                f"{engine.first_chunk_merged:,}",
            )
            for engine in engines
        ),
        engines=tuple(engine.key for engine in engines),
        formulas=(
            "client: prefill = Σ TTFT, decode = Σ (arrival of the last token − arrival of the first)",
            "engine: Σ of what it reports, – unless it reports it on every turn; difference = client − engine",
        ),
    )  # fmt: skip


def _minus(client: float | None, server: float | None) -> float | None:
    return None if client is None or server is None else client - server


def pressure_table(summary: Summary) -> Table:
    """What background load did to an engine's TPOT: one row an engine and load; no rows where there was none."""
    rows = [(found, effect) for found in summary.pressure for effect in found.effects]
    return Table(
        title="TPOT under background load",
        columns=("engine, load", "measured", "sessions", "turns", "tokens", "TPOT", "to no load"),
        rows=tuple(
            (
                f"{summary.label(found.engine)}, {wording.load(effect.load)}",
                " and ".join(wording.percent(found.measured[name]) for name in effect.load) or ABSENT,
                f"{effect.sessions:,}",
                f"{effect.turns:,}",
                f"{effect.tokens:,}",
                wording.median(effect.tpot, "ms"),
                ABSENT if effect.ratio is None else wording.ratio(effect.ratio, effect.ratio_interval),
            )
            for found, effect in rows
        ),
        engines=tuple(found.engine for found, _ in rows),
        formulas=(
            "tokens: those whose chunk and the chunk before it in the turn both arrived while every worker of the "
            "load was at it (no load: while none was); a gap across an edge counts for neither",
            "TPOT = Σ of the gaps between a turn's chunks that count / their tokens, median over turns; (interval) "
            "as in the table of engines",
            "to no load = the median over the engine's own without load, in the same run; (interval): the same "
            f"resampled sessions for both, none below {SMALLEST_SAMPLE} sessions with tokens in both",
            "measured: share of the time that each worker was really at it (cpu: CPU time of one core), mean over "
            "workers and over the whole of the phases",
        ),
    )


def workload_table(summary: Summary) -> Table:
    workload = summary.workload
    kinds = list(workload.turns_by_kind)
    return Table(
        title="Workload",
        columns=(
            "workload", "sessions", "turns", "output tokens",
            *(f"new tokens, {KIND_WORDS[kind]} ({workload.turns_by_kind[kind]:,})" for kind in kinds),
        ),
        rows=(
            (
                workload.name,
                f"{workload.sessions:,}",
                f"{workload.turns:,}",
                f"{workload.output_tokens:,}",
                *(f"{workload.new_tokens_median[kind]:,.0f}" for kind in kinds),
            ),
        ),
        formulas=(
            "output tokens and new tokens as replayed by the engine that got furthest; new tokens = prompt tokens "
            "beyond the previous turn's prompt and output, median over turns",
        ),
    )  # fmt: skip


def markdown(table: Table) -> str:
    """A GitHub table; cells are escaped, so that a name can't break it."""
    rules = [":--", *["--:"] * (len(table.columns) - 1)]
    rows = [[escaped(cell) for cell in row] for row in (table.columns, *table.rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], rules, *rows[1:]))


def escaped(text: str) -> str:
    """Text that Markdown shows as it is, in one line of a table."""
    for character in "\\|`*_<>[]":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())
