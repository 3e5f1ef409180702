"""What a completion looks like on the wire: OpenAI's shapes, with token ids and server timings. Pure."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from engines.ostinato.generate import Generation, Token
from engines.ostinato.request import CompletionRequest

DONE = b"data: [DONE]\n\n"


class Answer(Protocol):
    """Formats one request's tokens, as events while they come or as one object at the end."""

    def token(self, token: Token) -> bytes:
        """The events of one token; may be none, but for the first."""

    def end(self, generation: Generation) -> bytes:
        """The events after the last token."""

    def whole(self, tokens: Sequence[Token], generation: Generation) -> dict[str, Any]:
        """The body of an answer that is not streamed."""


class CompletionAnswer:
    """The ``Answer`` of ``/v1/completions``: one event a token.

    Args:
        spell: the bytes of a token, to name the alternatives.
    """

    def __init__(self, request: CompletionRequest, *, number: int, model: str, spell: Callable[[int], bytes]) -> None:
        self._request, self._spell = request, spell
        self._identity = {
            "id": f"cmpl-{number}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._offset = 0
        # Everything but the text and the id is the same for each token: serialised once.
        self._head = "data: " + json.dumps(self._identity)[:-1] + ', "choices": [{"index": 0, "text": '
        self._tail = ', "finish_reason": null}]}\n\n'

    def token(self, token: Token) -> bytes:
        ids = f', "token_ids": [{token.id}]' if self._request.return_token_ids else ""
        scores = "" if token.logprobs is None else f', "logprobs": {json.dumps(self._logprobs([token]))}'
        return f"{self._head}{json.dumps(token.text)}{ids}{scores}{self._tail}".encode()

    def end(self, generation: Generation) -> bytes:
        events = event(self._identity | {"choices": [self._choice([], generation.finish_reason)]})
        if self._request.include_usage:
            counts = {"usage": generation.usage(), "timings": generation.timings()}
            events += event(self._identity | {"choices": []} | counts)
        return events + DONE

    def whole(self, tokens: Sequence[Token], generation: Generation) -> dict[str, Any]:
        choice = self._choice(tokens, generation.finish_reason)
        if self._request.logprobs is not None:
            choice["logprobs"] = self._logprobs(tokens)
        return self._identity | {"choices": [choice], "usage": generation.usage(), "timings": generation.timings()}

    def _choice(self, tokens: Sequence[Token], finish_reason: str) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "text": "".join(token.text for token in tokens)}
        if self._request.return_token_ids:
            choice["token_ids"] = [token.id for token in tokens]
        return choice | {"finish_reason": finish_reason}

    def _logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token in tokens:
            assert token.logprobs is not None
            top: dict[str, float] = {}
            for id_, value in token.logprobs.top:
                name = self._name(id_)
                top[name if name not in top else f"token_id:{id_}"] = value
            found["tokens"].append(self._name(token.id))
            found["token_logprobs"].append(token.logprobs.taken)
            found["top_logprobs"].append(top)
            found["text_offset"].append(self._offset)
            self._offset += len(token.text)
        return found

    def _name(self, token_id: int) -> str:
        """A token's text; its number (as vLLM writes it) where that is none, or half a character."""
        try:
            return self._spell(token_id).decode() or f"token_id:{token_id}"
        except UnicodeDecodeError:
            return f"token_id:{token_id}"


def error(message: str, kind: str, code: str | None = None) -> dict[str, Any]:
    """An error, as a body or as the data of an event."""
    return {"error": {"message": message, "type": kind} | ({"code": code} if code else {})}


def error_events(message: str, kind: str) -> bytes:
    """An error inside a stream that has begun."""
    return event(error(message, kind)) + DONE


def event(content: dict[str, Any]) -> bytes:
    """Data of a stream of server-sent events."""
    return f"data: {json.dumps(content)}\n\n".encode()
