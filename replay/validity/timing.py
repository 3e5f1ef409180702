"""Checks on the client's own error, and on whether the engine stayed the same over the run."""

import math
from collections.abc import Sequence
from statistics import fmean, median

from replay.lag import Lags
from replay.record import TurnRecord
from replay.validity.check import Check, quantile

LAG_S = 0.001
"""Of the event loop, 99 % of the time."""
LAG_OF_TTFT = 0.01
"""Beyond ``LAG_S`` numbers are noisier; where arrivals are also stamped this share of the median TTFT too late on
average, sums and means are wrong."""
FEWEST_PROBES = 100
LATE_S = 0.01
"""A request may leave so long after it was due, 99 % of the time: preparing a long prompt takes a few ms."""
DRIFT = 0.05
"""Over the whole run, in parts of the time itself."""
FEWEST_SESSIONS = 8
CERTAIN = 2.576
"""Standard deviations: 1 in 100 steady runs shows such a trend."""


def loop_lag(turns: Sequence[TurnRecord], lags: Lags | None) -> Check:
    """How late the client would stamp bytes that arrive, while it awaited answers."""
    name, threshold = "event-loop lag", f"p99 at most {LAG_S * 1e3:g} ms"
    late = lags.within([(t.sent_ns, t.end_ns) for t in turns if t.sent_ns and t.end_ns]) if lags else []
    if len(late) < FEWEST_PROBES:
        return Check(
            name=name, ok=None, value=f"{len(late)} probes, fewer than {FEWEST_PROBES}: too short a run",
            threshold=threshold, severity="warning",
        )  # fmt: skip
    p99_s = quantile(late, 0.99)
    ok = p99_s <= LAG_S
    ttfts = [_ttft_s(turn) for turn in turns if turn.status == "ok"]
    mean_s = fmean(late)
    wrong = bool(ttfts) and mean_s > LAG_OF_TTFT * median(ttfts)
    return Check(
        name=name, ok=ok, threshold=threshold, severity="invalid" if wrong else "warning",
        value=f"mean {mean_s * 1e3:.2f} ms, p99 {p99_s * 1e3:.2f} ms, largest {max(late) * 1e3:.1f} ms",
        advice="" if ok else "arrivals are stamped this much too late; leave the client a core of its own: "
        "lower engine.threads, or end other programs",
    )  # fmt: skip


def send_lateness(turns: Sequence[TurnRecord]) -> Check:
    """How long after a later turn was due its request left: time of the client's own."""
    name, threshold = "requests sent on time", f"p99 at most {LATE_S * 1e3:g} ms late"
    late = [(turn.sent_ns - turn.due_ns) / 1e9 for turn in turns if turn.turn > 0 and turn.sent_ns is not None]
    if not late:
        return Check(name=name, ok=None, value="no later turn", threshold=threshold, severity="warning")
    p99_s = quantile(late, 0.99)
    ok = p99_s <= LATE_S
    return Check(
        name=name, ok=ok, threshold=threshold, severity="warning",
        value=f"p50 {quantile(late, 0.5) * 1e3:.2f} ms, p99 {p99_s * 1e3:.2f} ms late",
        advice="" if ok else "this time is in no latency, but the engine idled meanwhile; "
        "leave the client a core of its own",
    )  # fmt: skip


def drift(turns: Sequence[TurnRecord]) -> list[Check]:
    """Whether TTFT and TPOT grew or shrank over the run (heat, memory, other programs)."""
    good = [turn for turn in turns if turn.status == "ok" and turn.sent_ns is not None and turn.token_ns]
    return [
        _drift("drift of TTFT", [(turn, _ttft_s(turn)) for turn in good]),
        _drift("drift of TPOT", [(turn, tpot) for turn in good if (tpot := _tpot_s(turn)) is not None]),
    ]


def _drift(name: str, measured: Sequence[tuple[TurnRecord, float]]) -> Check:
    threshold = f"no trend beyond {DRIFT:.0%} over the run (Mann–Kendall, 1 %)"
    trend = session_trend([(turn, value) for turn, value in measured if value > 0])
    if trend is None:
        return Check(
            name=name,
            ok=None,
            value=f"fewer than {FEWEST_SESSIONS} sessions",
            threshold=threshold,
            severity="warning",
        )
    share, z = trend
    ok = abs(z) <= CERTAIN or abs(share) <= DRIFT
    return Check(
        name=name, ok=ok, value=f"{share:+.1%} over the run, z = {z:+.1f}", threshold=threshold, severity="warning",
        advice="" if ok else "the machine did not stay as it was: cool it, fix its clocks, end other programs; "
        "repeat the run and interleave the engines",
    )  # fmt: skip


def session_trend(measured: Sequence[tuple[TurnRecord, float]]) -> tuple[float, float] | None:
    """``(relative change from the first session to the last, z of the Mann–Kendall test)``.

    A value depends on its turn's tokens, so its logarithm is first freed of what a least-squares fit on new tokens,
    context, output tokens and being a first turn explains. The median of a session's residuals is one observation;
    sessions are ordered by their start. The change is the median of all pairs' slopes (Theil 1950, Sen 1968); z has
    the variance n(n − 1)(2n + 5)/18 (Mann 1945, Kendall 1975), with the continuity correction.

    Returns:
        None with fewer than ``FEWEST_SESSIONS`` sessions.
    """
    if len({turn.session_id for turn, _ in measured}) < FEWEST_SESSIONS:
        return None
    import numpy as np

    features = np.array(
        [
            [1.0, turn.turn == 0, math.log1p(turn.new_tokens), turn.prompt_tokens, turn.output_tokens]
            for turn, _ in measured
        ]
    )
    logs = np.log([value for _, value in measured])
    scaled = features / np.maximum(np.abs(features).max(axis=0), 1e-12)
    residuals = logs - scaled @ np.linalg.lstsq(scaled, logs, rcond=None)[0]
    sessions: dict[str, list[int]] = {}
    for row, (turn, _) in sorted(enumerate(measured), key=lambda item: item[1][0].sent_ns or 0):
        sessions.setdefault(turn.session_id, []).append(row)
    levels = np.array([np.median(residuals[rows]) for rows in sessions.values()])
    n = len(levels)
    earlier, later = np.triu_indices(n, k=1)
    differences = levels[later] - levels[earlier]
    s = float(np.sign(differences).sum())
    z = (s - math.copysign(min(1.0, abs(s)), s)) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    slope = float(np.median(differences / (later - earlier)))
    return math.expm1(slope * (n - 1)), z


def _ttft_s(turn: TurnRecord) -> float:
    assert turn.sent_ns is not None
    return (turn.token_ns[0] - turn.sent_ns) / 1e9


def _tpot_s(turn: TurnRecord) -> float | None:
    n = len(turn.token_ns)
    if n != turn.output_tokens:  # the stream did not tell when each came
        return None
    return (turn.token_ns[-1] - turn.token_ns[0]) / (n - 1) / 1e9 if n > 1 else None
