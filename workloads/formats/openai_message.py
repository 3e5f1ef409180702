"""Messages and tool schemas as OpenAI's chat completions write them."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from workloads.conversation import Message, ToolCall
from workloads.formats.chat import list_of, role_of, text_of
from workloads.formats.openhands import without_padding
from workloads.formats.read_message import Read
from workloads.formats.recognise import looks_like
from workloads.session import WorkloadError

# Names that chat completions had before, or have beside, the four roles.
OTHER_ROLES = {"developer": "system", "function": "tool"}
REASONING_FIELDS = ("reasoning_content", "reasoning")

REFUSAL = "answers that refuse, whose refusal is read as their text"
REBUILT_ARGUMENTS = "calls whose exact argument text was not recorded, rebuilt with json.dumps"


def read(entry: Any, place: str, *, answer: bool = False) -> Read:
    """Return one entry of ``messages``, or the message of a choice.

    Args:
        answer: the model wrote it for this request; any other message is given.

    Raises:
        WorkloadError: an unknown role, or a field of the wrong type.
    """
    losses: Counter[str] = Counter()
    message = message_of(entry, place, losses, answer=answer)
    return Read(message=message, losses=+losses)


def message_of(entry: Any, place: str, losses: Counter[str], *, answer: bool) -> Message:
    """Return the message as `read` does, with its losses added to ``losses``."""
    if isinstance(entry, dict) and isinstance(entry.get("role"), str):
        entry = entry | {"role": OTHER_ROLES.get(entry["role"], entry["role"])}
    role = role_of(entry, place)
    content = entry.get("content")
    if role == "assistant" and not content and isinstance(entry.get("refusal"), str):
        content = entry["refusal"]
        losses[REFUSAL] += 1
    text = text_of(content, place, losses)
    if role == "tool":
        return Message(
            role="tool",
            origin="given",
            content=text,
            tool_call_id=optional_text(entry.get("tool_call_id"), f"{place}, tool_call_id"),
            name=optional_text(entry.get("name"), f"{place}, name"),
        )
    if role != "assistant":
        return Message(role=role, origin="given", content=text)
    calls = [
        call_of(call, f"{place}, tool call {number}", losses)
        for number, call in enumerate(list_of(entry.get("tool_calls"), place, "tool_calls"), start=1)
    ]
    if isinstance(entry.get("function_call"), dict):
        calls.append(call_of({"function": entry["function_call"]}, f"{place}, function_call", losses))
    return Message(
        role="assistant",
        origin="model" if answer else "given",
        content=text,
        reasoning=next((entry[key] for key in REASONING_FIELDS if entry.get(key) and _is_text(entry[key])), None),
        tool_calls=tuple(calls),
    )


def call_of(call: Any, place: str, losses: Counter[str]) -> ToolCall:
    """Return a call, its argument text as it is; arguments that were parsed already are written again and counted.

    Raises:
        WorkloadError: no function name, or arguments that are neither text nor an object.
    """
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise WorkloadError(f"{place}: has no function name; fix or delete this row")
    return ToolCall(
        name=function["name"],
        arguments=argument_text(function.get("arguments"), place, losses),
        call_id=optional_text(call.get("id"), f"{place}, id"),
    )


def argument_text(arguments: Any, place: str, losses: Counter[str]) -> str:
    """Return a call's argument text.

    Raises:
        WorkloadError: arguments that are neither text, an object nor null.
    """
    if isinstance(arguments, str):
        return arguments
    if arguments is not None and not isinstance(arguments, dict):
        raise WorkloadError(f"{place}: arguments must be text or an object, found {looks_like(arguments)}")
    losses[REBUILT_ARGUMENTS] += 1
    return json.dumps(arguments or {}, ensure_ascii=False)


def schemas_of(value: Any, place: str) -> tuple[Mapping[str, Any], ...]:
    """Return tool schemas in OpenAI's form; a function that stands bare (``{name, parameters}``) is wrapped.

    Raises:
        WorkloadError: not a list of objects.
    """
    schemas = list_of(value, place, "tools")
    for schema in schemas:
        if not isinstance(schema, dict):
            raise WorkloadError(f"{place}: a tool schema is a JSON object, found {looks_like(schema)}")
    try:
        return tuple(without_padding(schema if "function" in schema else _wrapped(schema)) for schema in schemas)
    except RecursionError as error:
        raise WorkloadError(f"{place}: a tool schema is nested too deep; fix or delete this row") from error


def _wrapped(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    if "name" not in schema:
        return schema
    return {"type": "function", "function": {key: value for key, value in schema.items() if key != "type"}}


def optional_text(value: Any, place: str) -> str | None:
    """Return a text that may be null.

    Raises:
        WorkloadError: a value of another type.
    """
    if value is not None and not isinstance(value, str):
        raise WorkloadError(f"{place}: must be text, found {looks_like(value)}")
    return value


def optional_seconds(value: Any, place: str) -> float | None:
    """Return a number of seconds that may be null.

    Raises:
        WorkloadError: a value of another type, or one that is not finite.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise WorkloadError(f"{place}: must be a number of seconds, found {value!r:.40}")
    return float(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
