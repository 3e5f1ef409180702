"""What a chat completion looks like on the wire: OpenAI's shapes, with token ids and server timings on top."""

import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from engines.ostinato.answers import DONE, event
from engines.ostinato.chat.calls import Call
from engines.ostinato.chat.reader import Part
from engines.ostinato.generate import Generation, Token

if TYPE_CHECKING:
    from engines.ostinato.chat.request import ChatRequest

Json = dict[str, Any]


class ChatAnswer:
    """Formats one chat request's tokens, as events while they come or as one object at the end.

    A tool call comes in one piece, once the model has closed it. Tokens that say nothing yet (markup, half a
    character) have no event of their own, unless the client asked for ids or logprobs.
    """

    def __init__(self, request: "ChatRequest", *, number: int, model: str) -> None:
        self._request, self._reader = request.completion, request.reader
        self._spell: Callable[[int], bytes] = request.spell
        self._identity: Json = {"id": f"chatcmpl-{number}", "created": int(time.time()), "model": model}
        self._chunk = self._identity | {"object": "chat.completion.chunk"}
        self._calls = 0
        self._began = False

    def token(self, token: Token) -> bytes:
        """The events of one token; may be none."""
        parts = self._reader.feed(token.text)
        deltas = [self._delta(part) for part in parts]
        tells = self._request.return_token_ids or token.logprobs is not None
        if not deltas and (tells or not self._began):
            deltas = [{}]
        if not self._began:
            deltas[0] = {"role": "assistant", "content": "", **deltas[0]}
            self._began = True
        events = b""
        for at, delta in enumerate(deltas):
            choice: Json = {"index": 0, "delta": delta, "finish_reason": None}
            if at == 0 and token.logprobs is not None:
                choice["logprobs"] = self._logprobs([token])
            if self._request.return_token_ids:
                choice["token_ids"] = [token.id] if at == 0 else []
            events += event(self._chunk | {"choices": [choice]})
        return events

    def end(self, generation: Generation) -> bytes:
        """The events after the last token."""
        deltas = [self._delta(part) for part in self._reader.end()]
        choices: list[Json] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": self._finish(generation)})
        if self._request.return_token_ids:
            choices = [choice | {"token_ids": []} for choice in choices]
        events = b"".join(event(self._chunk | {"choices": [choice]}) for choice in choices)
        if self._request.include_usage:
            counts = {"usage": generation.usage(), "timings": generation.timings()}
            events += event(self._chunk | {"choices": []} | counts)
        return events + DONE

    def whole(self, tokens: Sequence[Token], generation: Generation) -> Json:
        """The body of an answer that is not streamed."""
        parts = [part for token in tokens for part in self._reader.feed(token.text)] + self._reader.end()
        content = "".join(part.content for part in parts)
        reasoning = "".join(part.reasoning for part in parts)
        calls = [self._call(part.call) for part in parts if part.call is not None]
        message: Json = {"role": "assistant", "content": content or (None if calls else "")}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        choice: Json = {"index": 0, "message": message, "finish_reason": self._finish(generation)}
        if self._request.logprobs is not None:
            choice["logprobs"] = self._logprobs(tokens)
        if self._request.return_token_ids:
            choice["token_ids"] = [token.id for token in tokens]
        return self._identity | {
            "object": "chat.completion",
            "choices": [choice],
            "usage": generation.usage(),
            "timings": generation.timings(),
        }

    def _delta(self, part: Part) -> Json:
        if part.call is not None:
            return {"tool_calls": [{"index": self._calls, **self._call(part.call)}]}
        return {"content": part.content} if part.content else {"reasoning_content": part.reasoning}

    def _call(self, call: Call) -> Json:
        self._calls += 1
        return {
            "id": call.id or f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }

    def _finish(self, generation: Generation) -> str:
        if not generation.ended:
            return "length"
        return "tool_calls" if self._calls else "stop"

    def _logprobs(self, tokens: Sequence[Token]) -> Json:
        content = []
        for token in tokens:
            assert token.logprobs is not None
            top = [self._scored(id_, value) for id_, value in token.logprobs.top]
            content.append(self._scored(token.id, token.logprobs.taken) | {"top_logprobs": top})
        return {"content": content, "refusal": None}

    def _scored(self, token_id: int, logprob: float) -> Json:
        spelled = self._spell(token_id)
        return {"token": spelled.decode(errors="replace"), "logprob": logprob, "bytes": list(spelled)}
