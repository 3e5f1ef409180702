"""What background load did to an engine's TPOT: one row an engine and load."""

from analysis import wording
from analysis.pressure import Effect, EnginePressure
from analysis.stats import SMALLEST_SAMPLE
from analysis.summary import Summary
from analysis.tables.table import Cell, Column, Line, Table, absent, count, median, number, words


def pressure_table(summary: Summary) -> Table:
    """No rows where there was no load."""
    rows = [(found, effect) for found in summary.pressure for effect in found.effects]
    return Table(
        name="background_load",
        title="TPOT under background load",
        heads=(
            Column("engine, load", "engine_load"),
            Column("measured", "measured_percent"),
            Column("sessions", "sessions"),
            Column("turns", "turns"),
            Column("tokens", "tokens"),
            Column("TPOT", "tpot_ms"),
            Column("to no load", "tpot_ratio"),
        ),
        lines=tuple(_effect(found, effect, summary) for found, effect in rows),
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


def _effect(found: EnginePressure, effect: Effect, summary: Summary) -> Line:
    return (
        words(f"{summary.label(found.engine)}, {wording.load(effect.load)}"),
        _measured(found, effect),
        count(effect.sessions),
        count(effect.turns),
        count(effect.tokens),
        median(effect.tpot, "ms", why="no token that counts"),
        number(
            effect.ratio,
            lambda value: wording.ratio(value, effect.ratio_interval),
            interval=effect.ratio_interval,
            why="no load to compare with",
        ),
    )


def _measured(found: EnginePressure, effect: Effect) -> Cell:
    shares = [found.measured[name] for name in effect.load]
    if not shares:
        return absent("no load")
    text = " and ".join(wording.percent(value) for value in shares)
    alone = shares[0] if len(shares) == 1 else None
    return Cell(
        text=text, number=None if alone is None else 100 * alone, why="" if alone else "several loads at once"
    )
