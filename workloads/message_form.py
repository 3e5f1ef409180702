"""A recorded message in Hugging Face's form, as one chat template wants it."""

import json
from dataclasses import dataclass
from typing import Any

from workloads.conversation import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageForm:
    """What chat templates disagree on; `workloads.template_probe.message_form` finds out what one wants."""

    raw_arguments: bool = True
    """Call arguments are the text that the model wrote; else the object it stands for."""
    reasoning_field: str = "reasoning_content"
    call_without_text: str | None = ""
    """The content of a message that holds calls only."""


def as_dict(message: Message, form: MessageForm) -> dict[str, Any]:
    """Return the message; fields that it does not have are left out."""
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        row[form.reasoning_field] = message.reasoning
    if message.tool_calls:
        if not message.content:
            row["content"] = form.call_without_text
        row["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.arguments if form.raw_arguments else _parsed(call.arguments),
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        row["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        row["name"] = message.name
    return row


def _parsed(arguments: str) -> object:
    """The argument object; text that is none (a model's slip) stays text."""
    try:
        value = json.loads(arguments)
    except (json.JSONDecodeError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
