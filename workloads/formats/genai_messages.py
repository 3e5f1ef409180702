"""Messages in OpenTelemetry's GenAI attributes: JSON of ``{role, parts}`` or of OpenAI's ``{role, content}``."""

import json
from collections import Counter
from typing import Any

from workloads.conversation import Message, ToolCall
from workloads.formats.chat import NOT_TEXT, list_of, role_of
from workloads.formats.openai_message import OTHER_ROLES, argument_text, optional_text, read
from workloads.formats.read_message import Read
from workloads.formats.recognise import looks_like
from workloads.session import WorkloadError


def json_value(value: Any, place: str) -> Any:
    """Return the value of an attribute, which is JSON text or already parsed.

    Raises:
        WorkloadError: text that is no JSON.
    """
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise WorkloadError(f"{place}: broken JSON ({reason}); attributes may have been cut by a limit") from error


def messages(value: Any, place: str, *, answer: bool = False) -> list[Read]:
    """Return the messages of ``gen_ai.input.messages``, or the answers of ``gen_ai.output.messages``, one a choice.

    Raises:
        WorkloadError: broken JSON, an unknown role, or a field of the wrong type.
    """
    found: list[Read] = []
    for number, entry in enumerate(list_of(json_value(value, place), place, "the messages"), start=1):
        at = f"{place}, message {number}"
        if answer and isinstance(entry, dict):
            entry = entry | {"role": "assistant"}
        if isinstance(entry, dict) and "parts" in entry:
            found += _from_parts(entry, at, answer=answer)
        else:
            found.append(read(entry, at, answer=answer))
    return found


def system_message(value: Any, place: str) -> list[Read]:
    """Return ``gen_ai.system_instructions`` as a system message; nothing when there are none.

    Raises:
        WorkloadError: as `messages`.
    """
    if not value:
        return []
    if isinstance(value, str) and not value.lstrip().startswith(("[", "{", '"')):
        return [read({"role": "system", "content": value}, place)]
    instructions = json_value(value, place)
    if isinstance(instructions, str):
        return [read({"role": "system", "content": instructions}, place)]
    return _from_parts({"role": "system", "parts": instructions}, place, answer=False)


def _from_parts(entry: dict[str, Any], place: str, *, answer: bool) -> list[Read]:
    """One message, or one for each tool result in it."""
    if isinstance(entry.get("role"), str):
        entry = entry | {"role": OTHER_ROLES.get(entry["role"], entry["role"])}
    role = role_of(entry, place)
    losses: Counter[str] = Counter()
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    results: list[Message] = []
    for part in list_of(entry["parts"], place, "parts"):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "reasoning") and isinstance(part.get("content"), str):
            (texts if kind == "text" else thoughts).append(part["content"])
        elif kind == "tool_call":
            calls.append(_call(part, place, losses))
        elif kind == "tool_call_response":
            results.append(_result(part, place))
        else:
            losses[NOT_TEXT] += 1
    if results:
        losses[NOT_TEXT] += len(texts)
        return [Read(message=one, losses={} if number else +losses) for number, one in enumerate(results)]
    message = Message(
        role=role,
        origin="model" if answer else "given",
        content="".join(texts),
        reasoning="".join(thoughts) or None,
        tool_calls=tuple(calls) if role == "assistant" else (),
    )
    return [Read(message=message, losses=+losses)]


def _call(part: dict[str, Any], place: str, losses: Counter[str]) -> ToolCall:
    if not isinstance(part.get("name"), str):
        raise WorkloadError(f"{place}: a tool call has no name, found {looks_like(part.get('name'))}")
    return ToolCall(
        name=part["name"],
        arguments=argument_text(part.get("arguments"), place, losses),
        call_id=optional_text(part.get("id"), f"{place}, tool call id"),
    )


def _result(part: dict[str, Any], place: str) -> Message:
    response = part.get("response", part.get("result"))
    return Message(
        role="tool",
        origin="given",
        content=response if isinstance(response, str) else json.dumps(response, ensure_ascii=False),
        tool_call_id=optional_text(part.get("id"), f"{place}, tool result id"),
    )
