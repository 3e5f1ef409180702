"""What kinds of message a conversation holds, and a small conversation that holds the same kinds.

Templates treat messages by kind, so what one does with the small conversation it does with the recorded one.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from workloads.conversation import Conversation, Message, Role, ToolCall

_TOOL = {"type": "function", "function": {"name": "probe", "description": "", "parameters": {"type": "object"}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    system: bool
    tools: bool
    calls: bool
    text_beside_calls: bool
    calls_of_a_turn: bool
    """More than one call in a turn."""
    reasoning: bool
    greeting: bool
    """An answer comes first."""


def shape(conversation: Conversation) -> Shape:
    messages = conversation.messages
    spoken = next((message for message in messages if message.role != "system"), None)
    return Shape(
        system=any(message.role == "system" for message in messages),
        tools=bool(conversation.tools),
        calls=any(message.tool_calls or message.role == "tool" for message in messages),
        text_beside_calls=any(message.tool_calls and message.content for message in messages),
        calls_of_a_turn=any(len(message.tool_calls) > 1 for message in messages),
        reasoning=any(message.reasoning for message in messages),
        greeting=spoken is not None and spoken.role == "assistant",
    )


def shaped(kind: Shape) -> Conversation:
    """Return a conversation with every kind of message of the shape before every other."""
    return Conversation(
        conversation_id="probe", source="probe", tools=(_TOOL,) if kind.tools else (), messages=tuple(_messages(kind))
    )


def _messages(kind: Shape) -> Iterator[Message]:
    if kind.system:
        yield _given("system")
    if kind.greeting:
        yield _given("assistant")
    yield _given("user")
    yield _answer(kind)
    yield _given("user")
    if kind.calls:
        yield from _round(kind, 2 if kind.calls_of_a_turn else 1, "probe" if kind.text_beside_calls else "")
        yield from _round(kind, 1, "")
        yield _answer(kind)
        yield _given("user")
        yield from _round(kind, 1, "")
        yield from _round(kind, 1, "probe" if kind.text_beside_calls else "", reasoning=False)
    yield _answer(kind)
    yield _given("user")
    yield _answer(kind, reasoning=False)
    yield _given("user")
    yield _answer(kind)


def _round(kind: Shape, calls: int, content: str, *, reasoning: bool = True) -> Iterator[Message]:
    """A turn with calls and their results."""
    names = [f"probe{number:04}" for number in range(calls)]
    made = tuple(ToolCall(name="probe", arguments='{"n": 1}', call_id=name) for name in names)
    yield _answer(kind, content, made, reasoning=reasoning)
    for name in names:
        yield Message(role="tool", origin="given", content="probe", tool_call_id=name, name="probe")


def _given(role: Role) -> Message:
    return Message(role=role, origin="given", content="probe")


def _answer(
    kind: Shape, content: str = "probe", calls: tuple[ToolCall, ...] = (), *, reasoning: bool = True
) -> Message:
    thought = "probe" if kind.reasoning and reasoning else None
    return Message(role="assistant", origin="model", content=content, reasoning=thought, tool_calls=calls)
