"""Ostinato's dialect: OpenAI's streamed completions, with the token ids of each chunk and the server's timings."""

from collections.abc import Sequence
from typing import Any

from engines.base import Answer, Dialect, Event, ForcedRequest
from engines.dialects.choices import Told, answer, asking
from engines.dialects.payload import illegal, token_ids

_FINISHED = frozenset({"stop", "length"})


class Ostinato:
    name = "ostinato"
    path = "/v1/completions"

    def body(self, request: ForcedRequest) -> dict[str, Any]:
        return {"prompt": request.prompt_ids, **asking(request)}

    def parse(self, events: Sequence[Event]) -> Answer:
        """A chunk is what carries ids; text without them is refused."""
        return answer(events, _told, _FINISHED)


DIALECT: Dialect = Ostinato()


def _told(choice: dict[str, Any]) -> Told:
    ids = token_ids(choice, "token_ids")
    if ids is None and choice.get("text"):
        raise illegal("text without token_ids", choice)
    return Told(ids=ids or (), text=False)
