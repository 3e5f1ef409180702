"""Ostinato's dialect: OpenAI's streamed completions, with the token ids of each chunk and the server's timings."""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from engines.base import Answer, Chunk, Dialect, EngineError, Event, ForcedRequest, ServerReport
from engines.complaint import complaint

_FINISHED = {"stop", "length"}


class Ostinato:
    name = "ostinato"
    path = "/v1/completions"

    def body(self, request: ForcedRequest) -> dict[str, Any]:
        return {
            "prompt": request.prompt_ids,
            "max_tokens": len(request.output_ids),
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }

    def parse(self, events: Sequence[Event]) -> Answer:
        """A chunk is what carries ids: roles, empty texts, the finish, usage and ``[DONE]`` are no tokens.

        Usage and timings may come in any chunk, or not at all; ``[DONE]`` may be missing; a finish may not.
        """
        chunks: list[Chunk] = []
        finish: str | None = None
        usage: Mapping[str, Any] = {}
        timings: Mapping[str, Any] = {}
        for event in events:
            payload = _payload(event, last=event is events[-1])
            if payload is None:
                continue
            for choice in _list(payload, "choices"):
                if ids := _ids(choice):
                    chunks.append(Chunk(t_ns=event.t_ns, n_tokens=len(ids), ids=ids))
                finish = choice.get("finish_reason") or finish
            usage = _object(payload, "usage") or usage
            timings = _object(payload, "timings") or timings
        if finish is None:
            raise EngineError(
                f"the stream ended after {sum(chunk.n_tokens for chunk in chunks)} tokens without a finish_reason; "
                "read the server's log",
                kind="cut",
            )
        if finish not in _FINISHED:
            raise EngineError(f"the server gave up: finish_reason {finish!r}; read its log", kind="error_event")
        return Answer(chunks=tuple(chunks), report=_report(usage, timings))


DIALECT: Dialect = Ostinato()


def _payload(event: Event, *, last: bool) -> dict[str, Any] | None:
    """The event's JSON object; None for one that says nothing."""
    if event.name == "error":
        raise complaint(event.data, "error_event")
    data = event.data.strip()
    if not data or data == "[DONE]":
        return None
    try:
        payload = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if last:
            raise EngineError("the stream ended inside an event; read the server's log", kind="cut") from error
        raise _illegal(f"an event that is not JSON ({error})", data) from error
    if not isinstance(payload, dict):
        raise _illegal("an event that is not a JSON object", data)
    if payload.get("error"):
        raise complaint(payload, "error_event")
    return payload


def _list(payload: dict[str, Any], name: str) -> list[dict[str, Any]]:
    items = payload.get(name) or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise _illegal(f"{name} that are not a list of objects", orjson.dumps(items).decode())
    return items


def _object(payload: dict[str, Any], name: str) -> dict[str, Any]:
    value = payload.get(name) or {}
    if not isinstance(value, dict):
        raise _illegal(f"{name} that are not an object", orjson.dumps(value).decode())
    return value


def _ids(choice: dict[str, Any]) -> tuple[int, ...]:
    ids = choice.get("token_ids")
    if ids is None:
        if choice.get("text"):
            raise _illegal("text without token_ids", orjson.dumps(choice).decode())
        return ()
    if not isinstance(ids, list) or any(type(token) is not int for token in ids):
        raise _illegal("token_ids that are not a list of integers", orjson.dumps(ids).decode())
    return tuple(ids)


def _report(usage: Mapping[str, Any], timings: Mapping[str, Any]) -> ServerReport:
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return ServerReport(
        cached_tokens=_count(cached if cached is not None else timings.get("cached_n")),
        prefilled_tokens=_count(timings.get("prompt_n")),
        generated_tokens=_count(usage.get("completion_tokens", timings.get("predicted_n"))),
        prefill_s=_seconds(timings.get("prompt_ms")),
        decode_s=_seconds(timings.get("predicted_ms")),
        extra=dict(timings),
    )


def _count(value: Any) -> int | None:
    return value if type(value) is int else None


def _seconds(milliseconds: Any) -> float | None:
    return milliseconds / 1e3 if isinstance(milliseconds, int | float) else None


def _illegal(what: str, data: str) -> EngineError:
    return EngineError(
        f"the server sent {what}: {data[:200]}; is engine.dialect=ostinato right for it?", kind="protocol"
    )
