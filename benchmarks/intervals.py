"""How often the intervals of ``analysis/stats.py`` cover the truth, and what they cost.

    python benchmarks/intervals.py [--worlds 2000]

A world is 13 or 60 sessions of unequal length (log-normal, sd 0.6) in which the candidate saves 30 %, times a noise
of each session's own. The Monte-Carlo error of a coverage is about 0.5 points at 2,000 worlds.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

from analysis import stats

SAVED = 0.30


def main() -> None:
    parser = argparse.ArgumentParser(description="Coverage and cost of the intervals in analysis/stats.py.")
    parser.add_argument("--worlds", type=int, default=2000, help="simulated worlds a row (default 2000)")
    parser.add_argument("--resamples", type=int, default=2000, help="resamples a world (default 2000)")
    chosen = parser.parse_args()
    print("sessions  noise sd  bootstrap-t  percentile  mean width, bootstrap-t / percentile")
    for sessions in (8, 13, 60):
        for spread in (0.02, 0.05, 0.15):
            print(_coverage(sessions, spread, chosen.worlds, chosen.resamples), flush=True)
    print(f"\n{stats.RESAMPLES:,} resamples, best of 7")
    for name, work in _costs().items():
        print(f"{name:<50} {1e3 * _best_s(work):8.1f} ms")


def _coverage(sessions: int, spread: float, worlds: int, resamples: int) -> str:
    rng = np.random.default_rng(sessions)
    hits, widths = np.zeros(2), np.zeros(2)
    for _ in range(worlds):
        baseline_S = rng.lognormal(3, 0.6, sessions)
        candidate_S = baseline_S * (1 - SAVED) * np.exp(rng.normal(0, spread, sessions) - spread**2 / 2)
        counts_RS = stats.resample(sessions, rng, resamples=resamples)
        intervals = stats.saved_share_intervals(baseline_S, candidate_S, counts_RS)
        hits += [not interval.excludes(SAVED) for interval in intervals]
        widths += [interval.high - interval.low for interval in intervals]
    studentised, percentile = 100 * hits / worlds
    return f"{sessions:8}  {spread:8}  {studentised:9.1f} %  {percentile:8.1f} %  {widths[0] / widths[1]:.2f}"


def _costs() -> dict[str, Callable[[], object]]:
    rng = np.random.default_rng(0)
    baseline_S, candidate_S = rng.lognormal(3, 0.6, 60), rng.lognormal(2.6, 0.6, 60)
    ttft_N, session_N = rng.lognormal(0, 0.7, 900), rng.integers(0, 60, 900)
    counts_RS = stats.resample(60, rng)
    return {
        "resample 60 sessions": lambda: stats.resample(60, rng),
        "both intervals of the saved share, 60 sessions": lambda: stats.saved_share_intervals(
            baseline_S, candidate_S, counts_RS
        ),
        "median of 900 turns in 60 sessions": lambda: stats.resampled_medians(ttft_N, session_N, counts_RS),
        "sign-flip test, 13 sessions (exact)": lambda: stats.sign_flip_p(baseline_S[:13], candidate_S[:13], rng),
        "sign-flip test, 60 sessions (sampled)": lambda: stats.sign_flip_p(baseline_S, candidate_S, rng),
    }


def _best_s(work: Callable[[], object]) -> float:
    times_s = []
    for _ in range(7):
        start = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - start)
    return min(times_s)


if __name__ == "__main__":
    main()
