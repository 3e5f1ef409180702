"""The dialect of llama-server and its forks: ``POST /completion`` with a prompt of token ids."""

from collections.abc import Sequence
from typing import Any

from engines.base import Answer, Chunk, Dialect, EngineError, Event, ForcedRequest, ServerReport
from engines.dialects.payload import count, illegal, mapping, payload, seconds, token_ids

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
            fields = payload(event, last=event is events[-1])
            if fields is None:
                continue
            ids, counted = _counted(fields)
            produced = max(counted, known + len(ids))
            if produced > known:
                chunks.append(Chunk(t_ns=event.t_ns, n_tokens=produced - known, ids=ids))
                known = produced
            if fields.get("stop") is True:
                return Answer(chunks=tuple(chunks), report=_report(fields))
        raise EngineError(
            f"the stream ended after {known} tokens without its final event; read the server's log", kind="cut"
        )


DIALECT: Dialect = LlamaCpp()


def _counted(fields: dict[str, Any]) -> tuple[tuple[int, ...], int]:
    """The chunk's ids, and how many tokens were produced so far, as far as the server says."""
    produced = fields.get("tokens_predicted", 0)
    if type(produced) is not int:
        raise illegal("tokens_predicted that is not an integer", fields)
    return token_ids(fields, "tokens") or (), produced


def _report(final: dict[str, Any]) -> ServerReport:
    timings = mapping(final, "timings")
    if not timings:
        raise illegal("a final event without timings", final)
    return ServerReport(
        cached_tokens=count(timings.get("cache_n")),
        prefilled_tokens=count(timings.get("prompt_n")),
        generated_tokens=count(timings.get("predicted_n", final.get("tokens_predicted"))),
        prefill_s=seconds(timings.get("prompt_ms")),
        decode_s=seconds(timings.get("predicted_ms")),
        extra={**timings, "stop_type": final.get("stop_type"), "truncated": final.get("truncated")},
    )
