"""Conversations in our own form: one JSON object a file, its fields those of ``workloads.conversation``.

``origin`` may be left out: an assistant message without it was produced by the model, any other message is given.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from workloads.conversation import Conversation, Message, Origin, Role, ToolCall
from workloads.session import WorkloadError

_ROLES: tuple[Role, ...] = get_args(Role)
_ORIGINS: tuple[Origin, ...] = get_args(Origin)
_FILE_KEYS = {"conversation_id", "source", "task_id", "tools", "messages"}
_MESSAGE_KEYS = {
    "role",
    "origin",
    "content",
    "reasoning",
    "tool_calls",
    "tool_call_id",
    "name",
    "time_s",
}
_CALL_KEYS = {"name", "arguments", "call_id"}


def matches(head: Any) -> bool:
    """Whether this is a conversation in our own form."""
    return isinstance(head, dict) and {"conversation_id", "source", "messages"} <= head.keys()


def load(path: Path) -> Iterator[Conversation]:
    """Yield the conversation of a file, or of each ``*.json`` file of a folder in the order of their names.

    Raises:
        WorkloadError: nothing there, an empty or broken file, an unknown or ill-typed field, an unknown role, a
            conversation in which the model says nothing; the message names file, line or field.
    """
    if path.is_dir():
        files = sorted(path.glob("*.json"))
        if not files:
            raise WorkloadError(f"{path}: no *.json file in this folder; name one that holds recorded conversations")
    elif path.is_file():
        files = [path]
    else:
        raise WorkloadError(f"{path}: no such file or folder; check workload.path")
    for file in files:
        yield _conversation(file)


def _conversation(path: Path) -> Conversation:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise WorkloadError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8 JSON") from error
    except OSError as error:
        raise WorkloadError(f"{path}: can't be read ({error.strerror}); check its permissions") from error
    if not text.strip():
        raise WorkloadError(f"{path}: the file is empty; record or copy it again")
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise WorkloadError(f"{path}: broken JSON at line {error.lineno} ({error.msg}); mend that line") from error
    row = _object(row, _FILE_KEYS, str(path))
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise WorkloadError(f"{path}: messages must be a list of at least one message")
    conversation = Conversation(
        conversation_id=_text(row, "conversation_id", str(path)),
        source=_text(row, "source", str(path)),
        task_id=_optional_text(row, "task_id", str(path)),
        tools=tuple(_schemas(row.get("tools", []), f"{path}: tools")),
        messages=tuple(_message(item, f"{path}: messages[{index}]") for index, item in enumerate(messages)),
    )
    if not any(message.origin == "model" for message in conversation.messages):
        raise WorkloadError(
            f"{path}: no message has origin model, so there is no turn to replay; leave this file out"
        )
    return conversation


def _message(item: object, place: str) -> Message:
    row = _object(item, _MESSAGE_KEYS, place)
    role = row.get("role")
    if role not in _ROLES:
        raise WorkloadError(f"{place}.role: unknown role {role!r}; known are {', '.join(_ROLES)}")
    origin = row.get("origin", "model" if role == "assistant" else "given")
    if origin not in _ORIGINS:
        raise WorkloadError(f"{place}.origin: unknown origin {origin!r}; known are {', '.join(_ORIGINS)}")
    if origin == "model" and role != "assistant":
        raise WorkloadError(f"{place}.origin: only an assistant message can come from the model; remove it")
    calls = row.get("tool_calls", [])
    if not isinstance(calls, list):
        raise WorkloadError(f"{place}.tool_calls: must be a list of calls")
    if calls and role != "assistant":
        raise WorkloadError(f"{place}.tool_calls: only an assistant message can call tools; remove them")
    return Message(
        role=role,
        origin=origin,
        content=_optional_text(row, "content", place) or "",
        reasoning=_optional_text(row, "reasoning", place),
        tool_calls=tuple(_call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(calls)),
        tool_call_id=_optional_text(row, "tool_call_id", place),
        name=_optional_text(row, "name", place),
        time_s=_optional_time(row, place),
    )


def _call(item: object, place: str) -> ToolCall:
    row = _object(item, _CALL_KEYS, place)
    return ToolCall(
        name=_text(row, "name", place),
        arguments=_text(row, "arguments", place),
        call_id=_optional_text(row, "call_id", place),
    )


def _schemas(value: object, place: str) -> Iterator[Mapping[str, Any]]:
    if not isinstance(value, list):
        raise WorkloadError(f"{place}: must be a list of tool schemas in OpenAI's form")
    for index, schema in enumerate(value):
        if not isinstance(schema, dict):
            raise WorkloadError(f"{place}[{index}]: a tool schema is a JSON object")
        yield schema


def _object(value: object, known: set[str], place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WorkloadError(f"{place}: expected a JSON object, found {type(value).__name__}")
    if unknown := value.keys() - known:
        raise WorkloadError(f"{place}: unknown field {min(unknown)!r}; known are {', '.join(sorted(known))}")
    return value


def _text(row: dict[str, Any], key: str, place: str) -> str:
    value = _optional_text(row, key, place)
    if value is None:
        raise WorkloadError(f"{place}: the field {key} is missing; add it")
    return value


def _optional_text(row: dict[str, Any], key: str, place: str) -> str | None:
    value = row.get(key)
    if value is not None and not isinstance(value, str):
        raise WorkloadError(f"{place}.{key}: must be text, found {type(value).__name__}")
    return value


def _optional_time(row: dict[str, Any], place: str) -> float | None:
    value = row.get("time_s")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise WorkloadError(f"{place}.time_s: must be a number of seconds, found {value!r}")
    return float(value)
