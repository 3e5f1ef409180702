"""Which call a tool result answers."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from workloads.conversation import Message, ToolCall

UNPAIRED = "tool results that answer no call"
BY_POSITION = "tool results without a call id, paired by position"


def pair_results(messages: Iterable[Message], losses: Counter[str]) -> list[Message]:
    """Return the messages with each tool result's call id and tool name filled in where the recording left them out.

    A result answers a call of the nearest assistant message before it: the one with its id, or the next one open.
    Recorded ids stay as they are even when a session uses one twice: some chat templates put them into the prompt.
    """
    open_calls: list[ToolCall] = []
    paired: list[Message] = []
    for message in messages:
        if message.role == "assistant":
            open_calls = list(message.tool_calls)
        elif message.role == "tool":
            call = _answered(open_calls, message.tool_call_id)
            if call is None:
                losses[UNPAIRED] += 1
            else:
                open_calls.remove(call)
                losses[BY_POSITION] += message.tool_call_id is None
                call_id = call.call_id if message.tool_call_id is None else message.tool_call_id
                message = replace(message, tool_call_id=call_id, name=message.name or call.name)
        paired.append(message)
    return paired


def _answered(open_calls: list[ToolCall], call_id: str | None) -> ToolCall | None:
    if call_id is None:
        return open_calls[0] if open_calls else None
    return next((call for call in open_calls if call.call_id == call_id), None)
