"""What a run must show before its numbers mean anything: each check is one function with its advice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from replay.record import TurnRecord

AGREEMENT = 0.005
"""Client and server totals may differ by so much (measurement: 0.5 %)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    ok: bool | None
    """None: could not be told, because the engine does not report what it takes."""
    value: str
    """What was seen, in words."""
    advice: str
    """What to do; empty when all is well."""


def checks(
    turns: Sequence[TurnRecord], sessions: Mapping[str, str], *, expected_sessions: int, warmed_up: bool
) -> list[Check]:
    """Every check, over the turns of each session's last attempt."""
    counted = last_attempts(turns)
    return [
        tokens_verified(counted),
        sessions_complete(sessions, expected_sessions),
        warm_up(warmed_up),
        cache_reuse(counted),
        totals_agree(counted),
    ]


def last_attempts(turns: Sequence[TurnRecord]) -> list[TurnRecord]:
    """Only a session's last attempt counts."""
    last: dict[str, int] = {}
    for turn in turns:
        last[turn.session_id] = max(turn.attempt, last.get(turn.session_id, 0))
    return [turn for turn in turns if turn.attempt == last[turn.session_id]]


def tokens_verified(turns: Sequence[TurnRecord]) -> Check:
    """The engine emitted exactly the recorded tokens on every turn."""
    good = [turn for turn in turns if turn.status == "ok" and turn.verified_by]
    tokens = sum(turn.output_tokens for turn in good)
    return Check(
        name="tokens verified",
        ok=bool(turns) and len(good) == len(turns),
        value=f"{len(good)} of {len(turns)} turns, {tokens:,} tokens",
        advice="" if len(good) == len(turns) else "see `error` of the other turns in turns.jsonl, and server.log",
    )


def sessions_complete(sessions: Mapping[str, str], expected: int) -> Check:
    complete = sum(status == "complete" for status in sessions.values())
    return Check(
        name="sessions complete",
        ok=complete == expected,
        value=f"{complete} of {expected}",
        advice="" if complete == expected else "engines are compared on the sessions that all of them completed",
    )


def warm_up(done: bool) -> Check:
    return Check(
        name="warm-up done and excluded",
        ok=done,
        value="yes" if done else "no",
        advice="" if done else "the first turns may hold one-time costs; run again",
    )


def cache_reuse(turns: Sequence[TurnRecord]) -> Check:
    """After the first turn an engine prefills the new tokens and the last output token, which was never decoded."""
    later = [turn for turn in turns if turn.turn > 0 and turn.prefilled_tokens is not None]
    if not later:
        return Check(
            name="cache reused",
            ok=None,
            value="the engine does not report how many tokens it prefilled",
            advice="TTFT may hold the whole prompt on every turn; ask the server for its cache statistics",
        )
    missed = [turn for turn in later if (turn.prefilled_tokens or 0) > turn.new_tokens + 1]
    extra = sum((turn.prefilled_tokens or 0) - turn.new_tokens - 1 for turn in missed)
    return Check(
        name="cache reused",
        ok=not missed,
        value=f"{len(later) - len(missed)} of {len(later)} later turns"
        + (f", {extra:,} tokens prefilled again" if missed else ""),
        advice="give the engine one slot and enough context, and turn its context shift off" if missed else "",
    )


def totals_agree(turns: Sequence[TurnRecord]) -> Check:
    """Time that the client saw and the server does not account for, over all turns.

    The client's time is arrival of the last token − request sent; the server's is prefill + decode.
    """
    name = "client and server totals agree"
    pairs = [
        ((turn.token_ns[-1] - turn.sent_ns) / 1e9, turn.server_prefill_s + turn.server_decode_s)
        for turn in turns
        if turn.status == "ok"
        and turn.token_ns
        and turn.sent_ns is not None
        and turn.server_prefill_s is not None
        and turn.server_decode_s is not None
    ]
    server_s = sum(server for _, server in pairs)
    if not pairs or server_s <= 0:
        return Check(name=name, ok=None, value="the engine does not report its times", advice="")
    extra_s = sum(client for client, _ in pairs) - server_s
    share = extra_s / server_s
    return Check(
        name=name,
        ok=abs(share) <= AGREEMENT,
        value=f"client {share:+.2%}, {extra_s / len(pairs) * 1e3:+.2f} ms a turn",
        advice=""
        if abs(share) <= AGREEMENT
        else "this much lies outside the engine's own prefill and decode (HTTP, tokenizing, queueing); "
        "it weighs most on short turns",
    )
