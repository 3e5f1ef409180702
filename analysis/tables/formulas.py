"""What the columns mean, in words and formulas: said under every table that has such a column."""

from analysis import slices
from analysis.stats import RESAMPLES, SMALLEST_SAMPLE

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
SLICED = (
    f"medians over turns; (interval): 95 % percentile interval, sessions resampled with all their turns, "
    f"{slices.RESAMPLES:,} times; none below {SMALLEST_SAMPLE} sessions"
)
WON = "won: sessions that the engine finishes sooner than the baseline"
VERIFIED = "verified: turns whose every output token is the recorded one, of the turns of each session's last attempt"
PREFILL = (
    "prefill as expected: the engine reports that it computed the new tokens and nothing more (after the first turn "
    "one more, the last output token, which was never decoded), of the turns where it reports this"
)
FEW = f"fewer than {SMALLEST_SAMPLE} sessions"
"""Why there is no interval."""
PAPER_ROWS = (
    "rows marked “paper, other machine”: Zhu, Ostinato, arXiv 2611.11533v1; 4 × RTX 4090D, 2 × Xeon 8358, its own "
    "sessions and models; no statistic of this report reads them"
)
