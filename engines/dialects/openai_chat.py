"""OpenAI's streamed chat completions: content, reasoning in both spellings, tool calls, ids where they are given.

A chat server renders messages itself, which would not be the recorded prompt. So the ids go along as
``prompt_token_ids``, to be used instead; a server that heeds neither them nor the forcing fails the self-test.
"""

from collections.abc import Sequence
from typing import Any

from engines.base import Answer, Dialect, Event, ForcedRequest
from engines.dialects.choices import Told, answer, asking
from engines.dialects.payload import illegal, mapping, objects, token_ids

_FINISHED = frozenset({"stop", "length", "tool_calls", "function_call"})
_TEXTS = ("content", "reasoning", "reasoning_content", "refusal")


class OpenAiChat:
    name = "openai_chat"
    path = "/v1/chat/completions"

    def body(self, request: ForcedRequest) -> dict[str, Any]:
        return {
            "messages": [{"role": "user", "content": ""}],
            "prompt_token_ids": request.prompt_ids,
            **asking(request),
        }

    def parse(self, events: Sequence[Event]) -> Answer:
        return answer(events, _told, _FINISHED)


DIALECT: Dialect = OpenAiChat()


def _told(choice: dict[str, Any]) -> Told:
    delta = mapping(choice, "delta")
    texts = [delta.get(name) for name in _TEXTS]
    calls = [mapping(call, "function") for call in objects(delta, "tool_calls")]
    for function in (*calls, mapping(delta, "function_call")):  # the latter: the older form of one call
        texts += [function.get("name"), function.get("arguments")]
    if any(text is not None and not isinstance(text, str) for text in texts):
        raise illegal("a delta whose text is not a string", choice)
    return Told(ids=token_ids(choice, "token_ids"), text=any(texts))
