"""How often ``compare --gate`` gives each verdict, by true slow-down: false alarms, power, and the stricter rule.

    python benchmarks/gate_power.py [--worlds 1000] [--sessions 13] [--spread 0.03] [--margin 3]

A world is so many sessions of unequal length (log-normal, sd 0.6); each session's ratio varies by itself (log-normal,
sd --spread). The verdict is on the total request time alone. "strict" counts the worlds where the whole interval lies
beyond the margin. The Monte-Carlo error is at most 1.6 points at 1,000 worlds.
"""

import argparse
from collections import Counter

import numpy as np

from analysis import stats
from analysis.change import Change
from analysis.gate import judge
from analysis.stats import Interval

SLOWER = (-0.05, 0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.10)


def main() -> None:
    parser = argparse.ArgumentParser(description="Verdicts of the gate by true slow-down.")
    parser.add_argument("--worlds", type=int, default=1000, help="simulated worlds a row (default 1000)")
    parser.add_argument("--resamples", type=int, default=2000, help="resamples a world (default 2000)")
    parser.add_argument("--sessions", type=int, default=13)
    parser.add_argument("--spread", type=float, default=0.03, help="sd of a session's own log ratio (default 0.03)")
    parser.add_argument("--margin", type=float, default=3.0, help="percent (default 3)")
    chosen = parser.parse_args()
    print(f"{chosen.sessions} sessions, sd {chosen.spread:g}, margin {chosen.margin:g} %, {chosen.worlds:,} worlds")
    print("slow-down     pass  inconclusive  regression  strict  more sessions, median")
    for slower in SLOWER:
        print(_row(slower, chosen), flush=True)


def _row(slower: float, chosen: argparse.Namespace) -> str:
    rng = np.random.default_rng(round(1000 * (1 + slower)))
    counts_RS = stats.resample(chosen.sessions, rng, resamples=chosen.resamples)
    verdicts: Counter[str] = Counter()
    strict, more = 0, []
    for _ in range(chosen.worlds):
        base_S = rng.lognormal(3, 0.6, chosen.sessions)
        candidate_S = base_S * (1 + slower) * np.exp(rng.normal(0, chosen.spread, chosen.sessions))
        share = stats.bootstrap_saved_share(base_S, candidate_S, counts_RS)
        saved = share.studentised()
        change = Change(
            metric="stream_s", kind=None, sessions=chosen.sessions, turns=0, change=-share.value,
            interval=Interval(-saved.high, -saved.low), p=share.p_longer(), error=share.error,
        )  # fmt: skip
        (row,) = judge([change], ["total request time"], margin=chosen.margin / 100)
        verdicts[row.verdict] += 1
        strict += -saved.high > chosen.margin / 100
        if row.more_sessions is not None:
            more.append(row.more_sessions)
    shares = {name: 100 * verdicts[name] / chosen.worlds for name in ("pass", "inconclusive", "regression")}
    needed = f"{np.median(more):.0f}" if more else "–"
    return (
        f"{100 * slower:8.0f} %  {shares['pass']:5.1f} %  {shares['inconclusive']:10.1f} %  "
        f"{shares['regression']:8.1f} %  {100 * strict / chosen.worlds:4.1f} %  {needed:>10}"
    )


if __name__ == "__main__":
    main()
