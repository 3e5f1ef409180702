"""How each dialect puts tokens, their end and the counts into events: what the fake engine's streams are made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias

Payload: TypeAlias = dict[str, Any]
DONE = b"data: [DONE]\n\n"
_REASON = "length"


class Wire(Protocol):
    """The events of one answer in one dialect."""

    dialect: ClassVar[str]

    def tokens(self, ids: Sequence[int], produced: int) -> Payload:
        """Tokens that leave together; ``produced`` counts all so far, these included."""

    def opening(self) -> tuple[Payload, ...]:
        """Events that may come before the first token and hold none."""

    def empty(self, produced: int) -> Payload:
        """An event that may come anywhere and holds no token."""

    def finish(self, generated: int, reason: str = _REASON) -> Payload:
        """The event that ends an answer."""

    def tail(self, generated: int) -> tuple[Payload | bytes, ...]:
        """What follows the tokens: finish, usage and ``[DONE]``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    """``/v1/completions``, with ids where the client asked for them: the dialects ``ostinato`` and ``openai``."""

    dialect: ClassVar[str] = "openai"
    name: str
    prompt_tokens: int
    cached_tokens: int
    ids: bool = True
    running_usage: bool = False

    def _chunk(self, **fields: Any) -> Payload:
        return {"id": self.name, "object": "text_completion", "created": 0, "model": "fake", **fields}

    def _choice(self, ids: Sequence[int], finish_reason: str | None = None) -> Payload:
        told = {"token_ids": list(ids)} if self.ids else {}
        return {"index": 0, "text": text_of(ids), **told, "finish_reason": finish_reason}

    def tokens(self, ids: Sequence[int], produced: int) -> Payload:
        running = {"usage": {"completion_tokens": produced}} if self.running_usage else {}
        return self._chunk(choices=[self._choice(ids)], **running)

    def opening(self) -> tuple[Payload, ...]:
        return self._chunk(choices=[{"index": 0, "delta": {"role": "assistant"}}]), self._chunk(
            choices=[], usage=None
        )

    def empty(self, produced: int) -> Payload:  # noqa: ARG002
        return self._chunk(choices=[self._choice([])])

    def finish(self, generated: int, reason: str = _REASON) -> Payload:  # noqa: ARG002
        return self._chunk(choices=[self._choice([], reason)])

    def usage(self, generated: int) -> Payload:
        new = self.prompt_tokens - self.cached_tokens
        timings = {"cached_n": self.cached_tokens, "prompt_n": new, "predicted_n": generated}
        return self._chunk(choices=[], usage=self._counts(generated), timings=timings)

    def _counts(self, generated: int) -> Payload:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self.prompt_tokens + generated,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def tail(self, generated: int) -> tuple[Payload | bytes, ...]:
        return self.finish(generated), self.usage(generated), DONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat(Completions):
    """``/v1/chat/completions``: the dialect ``openai_chat``."""

    dialect: ClassVar[str] = "openai_chat"
    field: str = "content"
    """Where the text goes: ``content``, ``reasoning``, ``reasoning_content`` or ``tool_calls``."""

    def _chunk(self, **fields: Any) -> Payload:
        return {"id": self.name, "object": "chat.completion.chunk", "created": 0, "model": "fake", **fields}

    def _choice(self, ids: Sequence[int], finish_reason: str | None = None) -> Payload:
        told = {"token_ids": list(ids)} if self.ids else {}
        return {"index": 0, "delta": self._delta(text_of(ids)), **told, "finish_reason": finish_reason}

    def _delta(self, text: str) -> Payload:
        if not text:
            return {"content": "", "reasoning_content": None}
        if self.field == "tool_calls":
            return {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        return {self.field: text}

    def opening(self) -> tuple[Payload, ...]:
        role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return self._chunk(choices=[role]), self._chunk(choices=[], usage=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCpp:
    """``/completion`` of llama-server: its one last event is finish and usage."""

    dialect: ClassVar[str] = "llamacpp"
    prompt_tokens: int
    cached_tokens: int

    def tokens(self, ids: Sequence[int], produced: int) -> Payload:
        return {
            "index": 0,
            "content": text_of(ids),
            "tokens": list(ids),
            "stop": False,
            "tokens_predicted": produced,
            "tokens_evaluated": self.prompt_tokens,
        }

    def opening(self) -> tuple[Payload, ...]:
        return ({**self.tokens([], 0), "prompt_progress": {"total": self.prompt_tokens, "processed": 0}},)

    def empty(self, produced: int) -> Payload:
        return self.tokens([], produced)

    def finish(self, generated: int, reason: str = _REASON) -> Payload:
        new = self.prompt_tokens - self.cached_tokens
        timings = {"cache_n": self.cached_tokens, "prompt_n": new, "predicted_n": generated}
        stop = {"stop": True, "stop_type": reason, "truncated": False}
        return {**self.tokens([], generated), **stop, "timings": timings}

    def tail(self, generated: int) -> tuple[Payload | bytes, ...]:
        return (self.finish(generated),)


def text_of(ids: Sequence[int]) -> str:
    return "".join(f" {token}" for token in ids)
