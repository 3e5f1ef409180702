"""One row a pair of engines, baseline pairs first."""

from analysis import wording
from analysis.compare import Comparison
from analysis.stats import MedianPair
from analysis.summary import Summary
from analysis.tables import formulas as said
from analysis.tables.table import Cell, Column, Line, Table, absent, ends, number, percent, share, words


def comparison_table(summary: Summary) -> Table:
    return Table(
        name="pairs",
        title="Pairs of engines",
        heads=(
            Column("candidate / baseline", "candidate_over_baseline"),
            Column("saved", "saved_percent"),
            Column("95 % interval", "saved_interval_percent"),
            Column("percentile", "saved_percentile_interval_percent"),
            Column("won", "won_sessions"),
            Column("median saving", "median_saving_percent"),
            Column("leave one out", "leave_one_out_percent"),
            Column("effective sessions", "effective_sessions"),
            Column("p", "p"),
            Column("TTFT after tool", "ttft_tool_ratio"),
            Column("TPOT", "tpot_ratio"),
        ),
        lines=tuple(_pair(c, summary) for c in summary.comparisons),
        formulas=(
            said.SAVED,
            said.BOOTSTRAP_T,
            "median saving: median over sessions of 1 − candidate / baseline; leave one out: lowest and highest "
            "saved share when any one session is left out",
            "effective sessions = (Σ w)² / Σ w², w the baseline's time of a session",
            "p: two-sided sign-flip permutation test of the sessions' differences, each pair by itself",
            "TTFT, TPOT: the candidate's median over the baseline's, the same resampled sessions for both",
        ),
    )


def _pair(c: Comparison, summary: Summary) -> Line:
    one_out = c.leave_one_out
    return (
        words(f"{summary.label(c.candidate)} / {summary.label(c.baseline)}"),
        percent(c.saved),
        ends(c.interval, why=said.FEW),
        ends(c.percentile, why=said.FEW),
        share(c.won, c.sessions, why="no session"),
        percent(c.median_saved),
        Cell(
            text=f"{wording.percent(one_out[0])} to {wording.percent(one_out[1])}",
            low=100 * one_out[0],
            high=100 * one_out[1],
        )
        if one_out
        else absent("a single session"),
        number(c.effective_sessions, lambda value: f"{value:.1f}"),
        number(c.p_value, lambda value: f"{value:.2g}", why=said.FEW),
        _ratio(c.ttft.get("tool")),
        _ratio(c.tpot),
    )


def _ratio(pair: MedianPair | None) -> Cell:
    if pair is None:
        return absent("one of the engines has no such turn")
    return number(pair.ratio, lambda value: wording.ratio(value, pair.ratio_interval), interval=pair.ratio_interval)
