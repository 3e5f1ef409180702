"""A recorded conversation before it is rendered to token ids."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
Origin = Literal["model", "given"]
"""``model``: the replayed model produced it and is forced to produce it again; ``given``: it stands in the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call as the model wrote it."""

    name: str
    arguments: str
    """The raw argument text; re-serialising it would change tokens."""
    call_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    role: Role
    origin: Origin
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """On a tool message: the call it answers."""
    name: str | None = None
    """On a tool message: the tool that answered."""
    time_s: float | None = None
    """Seconds since any fixed moment at which the message was complete; None when it was not recorded."""
    latency_s: float | None = None
    """On a model's message: the recorded time from its request to its last token; None when it was not recorded."""
    carries_result: bool = False
    """On a user message: it brings a tool's output, in formats that call tools in plain text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    conversation_id: str
    source: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    """Tool schemas in OpenAI's form, as the model saw them."""
    task_id: str | None = None
    losses: Mapping[str, int] = field(default_factory=dict)
    """What the loader left out or could not restore, by reason; shown to the user, never hidden."""
