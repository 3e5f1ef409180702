"""How the OpenAI family streams: chunks of ``choices``, a finish, and usage somewhere."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.base import Answer, Chunk, EngineError, Event, ForcedRequest, ServerReport
from engines.dialects.payload import count, mapping, objects, payload, seconds


@dataclass(frozen=True, slots=True)
class Told:
    """What one choice of one chunk says of tokens."""

    ids: tuple[int, ...] | None
    """None where the server gives no ids at all; empty where it says that there are none."""
    text: bool
    """There is generated text, of whatever kind."""


def asking(request: ForcedRequest) -> dict[str, Any]:
    """What every request of the family says beside its prompt: a greedy stream of so many tokens, with their ids."""
    return {
        "max_tokens": len(request.output_ids),
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }


def answer(events: Sequence[Event], read: Callable[[dict[str, Any]], Told], finishes: frozenset[str]) -> Answer:
    """Tokens and report of a stream.

    A chunk is what carries ids or, where the server gives none, text; roles, empty texts, the finish, usage and
    ``[DONE]`` are no tokens. Text counts one token unless a running usage (``continuous_usage_stats`` of vLLM and
    SGLang) says how many it holds. A chunk of several tokens without ids and running usage can't be told from one
    token: then the chunks hold fewer tokens than ``generated_tokens``, and no more is made of them.

    Usage and timings may come in any chunk, or not at all; ``[DONE]`` may be missing; a finish may not.

    Args:
        finishes: what ``finish_reason`` is after a whole answer.

    Raises:
        EngineError: ``error_event``, ``context``, ``protocol``, ``cut``.
    """
    chunks: list[Chunk] = []
    known = 0
    finish: str | None = None
    usage: Mapping[str, Any] = {}
    timings: Mapping[str, Any] = {}
    for event in events:
        fields = payload(event, last=event is events[-1])
        if fields is None:
            continue
        usage = mapping(fields, "usage") or usage
        timings = mapping(fields, "timings") or timings
        for choice in objects(fields, "choices"):
            told = read(choice)
            reason = choice.get("finish_reason")
            running = None if reason else count(mapping(fields, "usage").get("completion_tokens"))
            if tokens := _tokens(told, known, running):
                chunks.append(Chunk(t_ns=event.t_ns, n_tokens=tokens, ids=told.ids or ()))
                known += tokens
            finish = str(reason) if reason else finish
    if finish is None:
        raise EngineError(
            f"the stream ended after {known} tokens without a finish_reason; read the server's log", kind="cut"
        )
    if finish not in finishes:
        raise EngineError(f"the server gave up: finish_reason {finish!r}; read its log", kind="error_event")
    return Answer(chunks=tuple(chunks), report=_report(usage, timings))


def _tokens(told: Told, known: int, running: int | None) -> int:
    if told.ids is not None:
        return len(told.ids)
    grown = running - known if running is not None else 0
    return max(grown, 1) if told.text else max(grown, 0)


def _report(usage: Mapping[str, Any], timings: Mapping[str, Any]) -> ServerReport:
    details = usage.get("prompt_tokens_details")
    told = details.get("cached_tokens") if isinstance(details, dict) else None
    cached = count(told if told is not None else timings.get("cached_n", timings.get("cache_n")))
    prompt, prefilled = count(usage.get("prompt_tokens")), count(timings.get("prompt_n"))
    if prefilled is None and prompt is not None and cached is not None:
        prefilled = prompt - cached
    return ServerReport(
        cached_tokens=cached,
        prefilled_tokens=prefilled,
        generated_tokens=count(usage.get("completion_tokens", timings.get("predicted_n"))),
        prefill_s=seconds(timings.get("prompt_ms")),
        decode_s=seconds(timings.get("predicted_ms")),
        extra=dict(timings),
    )
