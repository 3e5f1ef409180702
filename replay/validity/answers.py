"""Checks on what the engine answered: tokens, sessions, what it reused and what it says of its times."""

from collections.abc import Mapping, Sequence

from replay.record import TurnRecord
from replay.validity.check import Check

COLD = 0.01
"""Of the first turns' prompt tokens, at most so many may come from a cache."""
AGREEMENT = 0.005
"""Client and server totals may differ by so much of the server's, and by …"""
AGREEMENT_S = 0.001
"""… so much a turn. HTTP and two processes taking turns cost a fixed time, 0.1 to 0.5 ms on an idle machine; without
this a turn of 5 ms would be called wrong for 0.03 ms."""


def tokens_verified(turns: Sequence[TurnRecord]) -> Check:
    """The engine emitted exactly the recorded tokens on every turn."""
    good = [turn for turn in turns if turn.status == "ok" and turn.verified_by]
    tokens = sum(turn.output_tokens for turn in good)
    all_good = bool(turns) and len(good) == len(turns)
    return Check(
        name="tokens verified",
        ok=all_good,
        value=f"{len(good)} of {len(turns)} turns, {tokens:,} tokens",
        threshold="every turn",
        severity="invalid",
        advice="" if all_good else "see `error` of the other turns in turns.jsonl, and server.log",
    )


def sessions_complete(sessions: Mapping[str, str], expected: int) -> Check:
    complete = sum(status == "complete" for status in sessions.values())
    return Check(
        name="sessions complete",
        ok=complete == expected,
        value=f"{complete} of {expected}",
        threshold="every session",
        severity="warning",
        advice="" if complete == expected else "engines are compared on the sessions that all of them completed",
    )


def warm_up(done: bool) -> Check:
    return Check(
        name="warm-up done and excluded",
        ok=done,
        value="yes" if done else "no",
        threshold="before the first turn",
        severity="invalid",
        advice="" if done else "the first turns may hold one-time costs; run again",
    )


def first_turns_cold(turns: Sequence[TurnRecord]) -> Check:
    """A session's first prompt is computed whole; else its TTFT depends on what was replayed before it."""
    name, threshold = "first turns cold", f"at most {COLD:.0%} of their prompt tokens cached"
    first = [turn for turn in turns if turn.turn == 0 and turn.prefilled_tokens is not None]
    if not first:
        return Check(
            name=name, ok=None, value="the engine does not report it", threshold=threshold, severity="invalid",
            advice="first turns may hold cached prompts; ask the server for its cache statistics",
        )  # fmt: skip
    prompt = sum(turn.prompt_tokens for turn in first)
    cached = sum(max(0, turn.prompt_tokens - (turn.prefilled_tokens or 0)) for turn in first)
    warm = sum(turn.prompt_tokens > (turn.prefilled_tokens or 0) for turn in first)
    ok = cached <= COLD * prompt
    return Check(
        name=name, ok=ok, threshold=threshold, severity="invalid",
        value=f"{cached:,} of {prompt:,} tokens cached" + (f", {warm} of {len(first)} first turns" if warm else ""),
        advice="" if ok else "its cache holds prompts of other sessions: let it keep one sequence, or restart it",
    )  # fmt: skip


def cache_reuse(turns: Sequence[TurnRecord], *, block_tokens: int = 1) -> Check:
    """After the first turn an engine prefills the new tokens and the last output token, which was never decoded.

    Args:
        block_tokens: of a cache that keeps whole blocks; it may lose the last one, up to so many tokens less one.
    """
    name, threshold = "cache reused", f"new tokens + {block_tokens} prefilled at most, on every later turn"
    later = [turn for turn in turns if turn.turn > 0 and turn.prefilled_tokens is not None]
    if not later:
        asked = any(turn.turn > 0 for turn in turns)
        return Check(
            name=name,
            ok=None,
            value="the engine does not report how many tokens it prefilled"
            if asked
            else "no session has a second turn",
            threshold=threshold,
            severity="invalid",
            advice="TTFT may hold the whole prompt on every turn; ask the server for its cache statistics"
            if asked
            else "",
        )
    missed = [turn for turn in later if (turn.prefilled_tokens or 0) > turn.new_tokens + block_tokens]
    extra = sum((turn.prefilled_tokens or 0) - turn.new_tokens - 1 for turn in missed)
    return Check(
        name=name,
        ok=not missed,
        value=f"{len(later) - len(missed)} of {len(later)} later turns"
        + (f", {extra:,} tokens prefilled again" if missed else ""),
        threshold=threshold,
        severity="invalid",
        advice="give the engine one slot and enough context, and turn its context shift off; where its cache keeps "
        "whole blocks of tokens, set engine.cache_block_tokens"
        if missed
        else "",
    )


def totals_agree(turns: Sequence[TurnRecord]) -> Check:
    """Time that the client saw and the server does not account for, over all turns.

    The client's time is arrival of the last token − request sent; the server's is prefill + decode.
    """
    name, threshold = "client and server totals agree", f"within {AGREEMENT:.1%} and {AGREEMENT_S * 1e3:g} ms a turn"
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
        return Check(
            name=name, ok=None, value="the engine does not report its times", threshold=threshold, severity="invalid"
        )
    extra_s = sum(client for client, _ in pairs) - server_s
    ok = abs(extra_s) <= AGREEMENT * server_s + AGREEMENT_S * len(pairs)
    return Check(
        name=name,
        ok=ok,
        value=f"client {extra_s / server_s:+.2%}, {extra_s / len(pairs) * 1e3:+.2f} ms a turn",
        threshold=threshold,
        severity="invalid",
        advice=""
        if ok
        else "this much lies outside the engine's own prefill and decode (HTTP, tokenizing, queueing); "
        "it weighs most on short turns",
    )


def prefix_breaks(losses: Mapping[str, int]) -> Check:
    """Places where the chat template rewrote what it had said before, so that the recording was changed to fit.

    Args:
        losses: what was lost while the recording was loaded, in words → how often.
    """
    broken = sum(times for what, times in losses.items() if "prefix" in what)
    return Check(
        name="prefix breaks of the chat template",
        ok=not broken,
        value=f"{broken:,}",
        threshold="none",
        severity="warning",
        advice=""
        if not broken
        else "the replayed prompts differ there from the recorded ones (see the workload's losses); "
        "use a template that keeps its past",
    )
