"""vLLM's dialect of token ids in and out: ``POST /inference/v1/generate`` (``--enable-scale-out``).

With ``engine.forcing=trace_replay`` it emits the recorded tokens. It tells how many prompt tokens were cached when
started with ``--enable-prompt-tokens-details``; its cache holds whole blocks of tokens (16 by default).

From vLLM's source (entrypoints/scale_out/token_in_token_out) and documentation. Needs a GPU: not run here.
"""

from collections.abc import Sequence
from typing import Any

from engines.base import Answer, Dialect, Event, ForcedRequest
from engines.dialects.choices import Told, answer
from engines.dialects.payload import token_ids

_FINISHED = frozenset({"stop", "length"})


class Vllm:
    name = "vllm"
    path = "/inference/v1/generate"

    def body(self, request: ForcedRequest) -> dict[str, Any]:
        """``ignore_eos`` only keeps the engine from stopping; trace replay sets it anyway."""
        return {
            "token_ids": request.prompt_ids,
            "sampling_params": {"temperature": 0, "max_tokens": len(request.output_ids), "ignore_eos": True},
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def parse(self, events: Sequence[Event]) -> Answer:
        """A chunk is what carries ids; the last ones come with the finish."""
        return answer(events, _told, _FINISHED)


DIALECT: Dialect = Vllm()


def _told(choice: dict[str, Any]) -> Told:
    return Told(ids=token_ids(choice, "token_ids") or (), text=False)
