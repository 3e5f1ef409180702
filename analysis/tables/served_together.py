"""How long a turn takes when several sessions are served at once."""

import numpy as np
import pandas as pd

from analysis.runs import Run
from analysis.summary import Summary
from analysis.tables.plain import plain
from analysis.tables.table import Column, Line, Table, absent, count, number, percent, words


def concurrency(run: Run) -> int | None:
    """Sessions at once, as the run was set; None: as many as arrived."""
    arrival = (run.result.get("config") or {}).get("arrival") or {}
    found = arrival.get("concurrency")
    return int(found) if found else None


def turn_wall_table(part: Summary) -> Table:
    """Runs of more than one session at once; no rows where there was none."""
    runs = [run for run in part.runs if (concurrency(run) or 1) > 1 and len(run.measured)]
    return Table(
        name="turn_wall",
        title="Turn wall time, several sessions at once",
        heads=(
            Column("engine", "engine"),
            Column("sessions at once", "concurrency"),
            Column("turns", "turns"),
            Column("TTFT (s)", "ttft_median_s"),
            Column("decode (tok/s)", "decode_median_tokens_per_s"),
            Column("turn wall (s)", "turn_wall_median_s"),
            Column("turn wall, p95 (s)", "turn_wall_p95_s"),
            Column("turns failed", "failed_percent"),
        ),
        lines=tuple(_line(run) for run in runs),
        engines=tuple(run.key for run in runs),
        formulas=(
            "turn wall = end of the stream − request sent (prefill, decode and what the turn waited for in the "
            "engine); median and 95th percentile over turns",
            "decode: median over turns of 1 / TPOT, of one session among the others",
            "turns failed: of those sent, in each session's last attempt",
        ),
    )


def _line(run: Run) -> Line:
    turns = run.measured
    return (
        words(run.label),
        count(concurrency(run)),
        count(len(turns)),
        number(_quantile(turns["ttft_s"], 0.5), plain),
        number(_quantile(1 / turns["tpot_s"].dropna(), 0.5), plain, why="no turn tells a TPOT"),
        number(_quantile(turns["stream_s"], 0.5), plain),
        number(_quantile(turns["stream_s"], 0.95), plain),
        percent(len(run.failed) / len(run.turns)) if len(run.turns) else absent("no turn"),
    )


def _quantile(values: "pd.Series[float]", q: float) -> float | None:
    known = values.to_numpy(np.float64)
    known = known[np.isfinite(known)]
    return float(np.quantile(known, q)) if len(known) else None
