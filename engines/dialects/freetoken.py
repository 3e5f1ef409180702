"""FreeToken's dialect as the hook widens it (``engines/forcing/hooks/ostinato_forcing_freetoken.py``).

FreeToken itself takes text and streams text, without ids. Its ``/v1/completions`` is spoken rather than its
``/generate``, which neither tells errors nor counts. From the source of freetoken 0.2.1. Needs a GPU: not run here.
"""

import base64
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engines.base import Answer, Dialect, Event, ForcedRequest
from engines.dialects.choices import Told, answer
from engines.dialects.payload import illegal

IDS = "\0ids:"
"""Before a prompt of ids: base64 of 32-bit integers, which takes the server no time to read."""
_FINISHED = frozenset({"stop", "length"})


class FreeToken:
    name = "freetoken"
    path = "/v1/completions"

    def body(self, request: ForcedRequest) -> dict[str, Any]:
        """``ignore_eos`` only keeps the engine from stopping. It serves one model, whatever name is asked for."""
        return {
            "model": "any",
            "prompt": IDS + base64.b64encode(array("i", request.prompt_ids).tobytes()).decode(),
            "max_tokens": len(request.output_ids),
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def parse(self, events: Sequence[Event]) -> Answer:
        """The text of a chunk is made of ``\\0id:N``, one a token, and once ``\\0prompt:TOKENS:CACHED``.

        Text without them, of a server without the hook, holds no ids: its tokens are refused when they are verified.
        """
        prompt: list[tuple[int, int]] = []

        def told(choice: dict[str, Any]) -> Told:
            text = choice.get("text") or ""
            if not isinstance(text, str):
                raise illegal("text that is not a string", choice)
            first, *marks = text.split("\0")
            if first:
                return Told(ids=None, text=True)
            ids = []
            for mark in marks:
                match mark.split(":"):
                    case ["id", id_] if id_.isdecimal():
                        ids.append(int(id_))
                    case ["prompt", tokens, cached] if tokens.isdecimal() and cached.isdecimal():
                        prompt.append((int(tokens), int(cached)))
                    case _:
                        raise illegal("a mark that the forcing hook does not write", choice)
            return Told(ids=tuple(ids), text=False)

        whole = answer(events, told, _FINISHED)
        if not prompt:
            return whole
        tokens, cached = prompt[-1]
        report = replace(whole.report, cached_tokens=cached, prefilled_tokens=tokens - cached)
        return Answer(chunks=whole.chunks, report=report)


DIALECT: Dialect = FreeToken()
