"""The dialect of llama-server and its forks: ``POST /completion`` with a prompt of token ids."""

from collections.abc import Sequence
from typing import Any

import orjson

from engines.base import Answer, Chunk, Dialect, EngineError, Event, ForcedRequest, ServerReport
from engines.complaint import complaint

# The whole final event repeats the prompt as text: for long prompts, work at the end of each turn for nothing.
_FINAL_FIELDS = ["tokens", "stop", "stop_type", "truncated", "tokens_predicted", "tokens_evaluated", "timings"]


class LlamaCpp:
    name = "llamacpp"
    path = "/completion"

    def body(self, request: ForcedRequest) -> dict[str, Any]:
        """Greedy and cached. Never ``ignore_eos``: it takes a recorded end token away."""
        return {
            "prompt": request.prompt_ids,
            "n_predict": len(request.output_ids),
            "temperature": 0,
            "cache_prompt": True,
            "stream": True,
            "return_tokens": True,
            "response_fields": _FINAL_FIELDS,
        }

    def parse(self, events: Sequence[Event]) -> Answer:
        """Chunks hold as many tokens as ``tokens_predicted`` grew by.

        While text is held back for an incomplete character, no event is sent and the ids of those tokens never come;
        they arrive, uncalled, with the next event.
        """
        chunks: list[Chunk] = []
        known = 0
        for event in events:
            payload = _payload(event, last=event is events[-1])
            if payload is None:
                continue
            ids = _ids(payload)
            produced = max(payload.get("tokens_predicted", 0), known + len(ids))
            if produced > known:
                chunks.append(Chunk(t_ns=event.t_ns, n_tokens=produced - known, ids=ids))
                known = produced
            if payload.get("stop") is True:
                return Answer(chunks=tuple(chunks), report=_report(payload))
        raise EngineError(
            f"the stream ended after {known} tokens without its final event; read the server's log", kind="cut"
        )


DIALECT: Dialect = LlamaCpp()


def _payload(event: Event, *, last: bool) -> dict[str, Any] | None:
    if event.name == "error":
        raise complaint(event.data, "error_event")
    if event.data.strip() in ("", "[DONE]"):
        return None
    try:
        payload = orjson.loads(event.data)
    except orjson.JSONDecodeError as error:
        if last:
            raise EngineError("the stream ended inside an event; read the server's log", kind="cut") from error
        raise _illegal("an event that is not JSON", event.data) from error
    if not isinstance(payload, dict):
        raise _illegal("an event that is not a JSON object", event.data)
    if payload.get("error"):
        raise complaint(payload, "error_event")
    return payload


def _ids(payload: dict[str, Any]) -> tuple[int, ...]:
    ids = payload.get("tokens", [])
    produced = payload.get("tokens_predicted", 0)
    if not isinstance(ids, list) or any(type(id_) is not int for id_ in [*ids, produced]):
        raise _illegal("tokens that are not integers", orjson.dumps(payload).decode())
    return tuple(ids)


def _report(final: dict[str, Any]) -> ServerReport:
    timings = final.get("timings")
    if not isinstance(timings, dict):
        raise _illegal("a final event without timings", orjson.dumps(final).decode())
    prompt_ms, predicted_ms = timings.get("prompt_ms"), timings.get("predicted_ms")
    return ServerReport(
        cached_tokens=timings.get("cache_n"),
        prefilled_tokens=timings.get("prompt_n"),
        generated_tokens=timings.get("predicted_n", final.get("tokens_predicted")),
        prefill_s=None if prompt_ms is None else prompt_ms / 1e3,
        decode_s=None if predicted_ms is None else predicted_ms / 1e3,
        extra={**timings, "stop_type": final.get("stop_type"), "truncated": final.get("truncated")},
    )


def _illegal(what: str, data: str) -> EngineError:
    return EngineError(
        f"the server sent {what}: {data[:200]}; is engine.dialect=llamacpp right for it?", kind="protocol"
    )
