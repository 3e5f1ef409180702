"""Checks on how the engine was made to emit the recorded tokens, and on what that tells of its times."""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from replay.record import TurnRecord
from replay.validity.check import Check, quantile

SPREAD_S = 0.001
"""So much longer than the median may a token take from the server's choice to the client, for 99 % of them, …"""
SPREAD_OF_GAP = 0.05
"""… or this share of the median time between two tokens."""
CLOCK_S = 0.00005
"""No token arrives before it was chosen; two CPUs' readings of one clock differ by less than this."""


def one_request_a_turn(turns: Sequence[TurnRecord]) -> Check:
    """A turn's tokens were decoded in one go, and not asked for one by one."""
    apart = sum(turn.verified_by == "prompts" for turn in turns)
    return Check(
        name="one request a turn",
        ok=not apart,
        value=f"{apart} of {len(turns)} turns in one request a token" if apart else "every turn",
        threshold="every turn",
        severity="invalid",
        advice=""
        if not apart
        else "TPOT holds the cost of a request a token (engine.forcing=one_token): compare such a run with its like "
        "only, or force the engine another way (field, shim, hook, trace_replay)",
    )


def stamps_agree(turns: Sequence[TurnRecord]) -> Check:
    """The client stamps tokens in the rhythm in which the server chose them.

    Of tokens that arrive together only the last one tells. The difference of the two stamps holds the server's
    sampling and HTTP, which shift all arrivals alike; what varies between tokens is noise in ITL and TPOT.
    """
    name = "client and server stamps agree"
    threshold = f"none negative; p99 at most {SPREAD_S * 1e3:g} ms or {SPREAD_OF_GAP:.0%} of a gap above the median"
    good = [turn for turn in turns if turn.status == "ok" and turn.server_token_ns]
    late = [seconds for turn in good for seconds in _late(turn)]
    if not late:
        value = "the way of forcing stamps no tokens in the server" if not good else "no token arrived on its own"
        return Check(name=name, ok=None, value=value, threshold=threshold, severity="warning")
    gaps = [(b - a) / 1e9 for turn in good for a, b in pairwise(turn.server_token_ns or ())]
    middle_s, p99_s = median(late), quantile(late, 0.99)
    early = sum(seconds < -CLOCK_S for seconds in late)
    room_s = max(SPREAD_S, SPREAD_OF_GAP * median(gaps)) if gaps else SPREAD_S
    steady = p99_s - middle_s <= room_s
    advice = ""
    if early:
        advice = "the server's clock is another one: run client and server on one machine"
    elif not steady:
        advice = (
            "arrivals are noisier than the engine: leave the client and the server's HTTP threads a core of their "
            "own, and take ITL from server_token_ns in turns.jsonl"
        )
    return Check(
        name=name,
        ok=steady and not early,
        value=f"client later by {middle_s * 1e3:.2f} ms at the median, {p99_s * 1e3:.2f} ms at p99"
        + (f", but earlier for {early:,} tokens" if early else ""),
        threshold=threshold,
        severity="invalid" if early else "warning",
        advice=advice,
    )


def _late(turn: TurnRecord) -> list[float]:
    """How much later than in the server each token was stamped, of those that arrived alone or last of a chunk, s."""
    arrived, chosen = turn.token_ns, turn.server_token_ns or ()
    if len(arrived) != len(chosen):  # the stream did not tell when each came
        return []
    last = [*(a != b for a, b in pairwise(arrived)), True]
    return [(a - c) / 1e9 for a, c, alone in zip(arrived, chosen, last, strict=True) if alone]
