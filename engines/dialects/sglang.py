"""SGLang's native dialect, also of sglang-kt (KTransformers): ``POST /generate`` with a prompt of token ids.

From the sources of sglang 0.5.23 and sglang-kt 0.7.2 (http_server.py, tokenizer_manager.py). Needs a GPU: not run
here.
"""

from collections.abc import Sequence
from typing import Any

from engines.base import Answer, Chunk, Dialect, EngineError, Event, ForcedRequest, ServerReport
from engines.complaint import complaint
from engines.dialects.payload import count, illegal, mapping, payload, token_ids

_FINISHED = frozenset({"stop", "length"})


class SgLang:
    name = "sglang"
    path = "/generate"

    def body(self, request: ForcedRequest) -> dict[str, Any]:
        """``ignore_eos`` only keeps the scheduler from stopping; it touches no logit."""
        return {
            "input_ids": request.prompt_ids,
            "sampling_params": {"temperature": 0, "max_new_tokens": len(request.output_ids), "ignore_eos": True},
            "stream": True,
        }

    def parse(self, events: Sequence[Event]) -> Answer:
        """``meta_info.completion_tokens`` counts all tokens so far; ``output_ids`` are all of them or, with
        ``--incremental-streaming-output`` (in older versions ``--stream-output``), those of the event. The last
        tokens and the finish share an event. Ids are never held back for incomplete text.
        """
        chunks: list[Chunk] = []
        known = 0
        meta: dict[str, Any] = {}
        finish: dict[str, Any] = {}
        for event in events:
            fields = payload(event, last=event is events[-1])
            if fields is None:
                continue
            meta = mapping(fields, "meta_info")
            produced = count(meta.get("completion_tokens"))
            if produced is None or produced < known:
                raise illegal("an event whose meta_info.completion_tokens does not count on", fields)
            ids = _new_ids(fields, known, produced)
            if produced > known:
                chunks.append(Chunk(t_ns=event.t_ns, n_tokens=produced - known, ids=ids))
                known = produced
            finish = mapping(meta, "finish_reason") or finish
        if not finish:
            raise EngineError(
                f"the stream ended after {known} tokens without a finish_reason; read the server's log", kind="cut"
            )
        if finish.get("type") not in _FINISHED:
            raise complaint({"error": {"type": finish.get("type"), "message": finish.get("message") or "no reason"}},
                            "error_event")  # fmt: skip
        return Answer(chunks=tuple(chunks), report=_report(meta))


DIALECT: Dialect = SgLang()


def _new_ids(fields: dict[str, Any], known: int, produced: int) -> tuple[int, ...]:
    ids = token_ids(fields, "output_ids")
    if ids is None:
        return ()
    if len(ids) == produced:
        return ids[known:]
    if len(ids) == produced - known:
        return ids
    raise illegal(f"{len(ids)} output_ids where {produced - known} are new of {produced}", fields)


def _report(meta: dict[str, Any]) -> ServerReport:
    prompt, cached = count(meta.get("prompt_tokens")), count(meta.get("cached_tokens"))
    return ServerReport(
        cached_tokens=cached,
        prefilled_tokens=prompt - cached if prompt is not None and cached is not None else None,
        generated_tokens=count(meta.get("completion_tokens")),
        extra={name: value for name, value in meta.items() if isinstance(value, int | float | str)},
    )
