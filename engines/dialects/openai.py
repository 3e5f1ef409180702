"""OpenAI's streamed completions as any server speaks them: text, and token ids where the server gives them.

vLLM gives ids when asked with ``return_token_ids``. Without ids a stream proves neither which tokens came nor, where
chunks hold several, how many came when: such an engine is verified from inside (``engine.forcing=shim``) or refused.
"""

from collections.abc import Sequence
from typing import Any

from engines.base import Answer, Dialect, Event, ForcedRequest
from engines.dialects.choices import Told, answer, asking
from engines.dialects.payload import illegal, token_ids

_FINISHED = frozenset({"stop", "length"})


class OpenAi:
    name = "openai"
    path = "/v1/completions"

    def body(self, request: ForcedRequest) -> dict[str, Any]:
        return {"prompt": request.prompt_ids, **asking(request)}

    def parse(self, events: Sequence[Event]) -> Answer:
        return answer(events, _told, _FINISHED)


DIALECT: Dialect = OpenAi()


def _told(choice: dict[str, Any]) -> Told:
    text = choice.get("text")
    if text is not None and not isinstance(text, str):
        raise illegal("text that is not a string", choice)
    return Told(ids=token_ids(choice, "token_ids"), text=bool(text))
