"""What a completion looks like on the wire: OpenAI's shapes, with token ids and server timings. Pure."""

import json
import time
from collections.abc import Sequence
from typing import Any

from engines.ostinato.generate import Generation, Token
from engines.ostinato.request import CompletionRequest

DONE = b"data: [DONE]\n\n"


class Answer:
    """Formats one request's tokens, as events while they come or as one object at the end."""

    def __init__(self, request: CompletionRequest, *, number: int, model: str) -> None:
        self._request = request
        self._identity = {
            "id": f"cmpl-{number}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        # Everything but the text and the id is the same for each token: serialised once.
        self._head = "data: " + json.dumps(self._identity)[:-1] + ', "choices": [{"index": 0, "text": '
        self._tail = ', "finish_reason": null}]}\n\n'

    def token(self, token: Token) -> bytes:
        """The event of one token."""
        ids = f', "token_ids": [{token.id}]' if self._request.return_token_ids else ""
        return f"{self._head}{json.dumps(token.text)}{ids}{self._tail}".encode()

    def end(self, generation: Generation) -> bytes:
        """The events after the last token."""
        events = _event(self._identity | {"choices": [self._choice([], generation.finish_reason)]})
        if self._request.include_usage:
            counts = {"usage": generation.usage(), "timings": generation.timings()}
            events += _event(self._identity | {"choices": []} | counts)
        return events + DONE

    def whole(self, tokens: Sequence[Token], generation: Generation) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        choices = [self._choice(tokens, generation.finish_reason)]
        counts = {"usage": generation.usage(), "timings": generation.timings()}
        return self._identity | {"choices": choices} | counts

    def _choice(self, tokens: Sequence[Token], finish_reason: str) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "text": "".join(token.text for token in tokens)}
        if self._request.return_token_ids:
            choice["token_ids"] = [token.id for token in tokens]
        return choice | {"finish_reason": finish_reason}


def error(message: str, kind: str) -> dict[str, Any]:
    """An error, as a body or as the data of an event."""
    return {"error": {"message": message, "type": kind}}


def error_events(message: str, kind: str) -> bytes:
    """An error inside a stream that has begun."""
    return _event(error(message, kind)) + DONE


def _event(content: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(content)}\n\n".encode()
