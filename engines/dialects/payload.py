"""What dialects of JSON events share: an event's object, checked fields out of it, words for what is illegal."""

from typing import Any

import orjson

from engines.base import EngineError, Event
from engines.complaint import complaint


def payload(event: Event, *, last: bool) -> dict[str, Any] | None:
    """The event's JSON object; None for one that says nothing.

    Args:
        last: nothing follows, so that half an object means that the stream was cut.

    Raises:
        EngineError: ``error_event`` or ``context`` for an error inside the stream, ``cut``, ``protocol``.
    """
    if event.name == "error":
        raise complaint(event.data, "error_event")
    data = event.data.strip()
    if not data or data == "[DONE]":
        return None
    try:
        parsed = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if last:
            raise EngineError("the stream ended inside an event; read the server's log", kind="cut") from error
        raise illegal(f"an event that is not JSON ({error})", data) from error
    if not isinstance(parsed, dict):
        raise illegal("an event that is not a JSON object", data)
    if parsed.get("error") or parsed.get("object") == "error":  # the latter: vLLM before 0.10
        raise complaint(parsed, "error_event")
    return parsed


def objects(fields: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A list of objects; empty where the field is missing or null."""
    items = fields.get(name) or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise illegal(f"{name} that are not a list of objects", items)
    return items


def mapping(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """An object; empty where the field is missing or null."""
    value = fields.get(name) or {}
    if not isinstance(value, dict):
        raise illegal(f"{name} that are not an object", value)
    return value


def token_ids(fields: dict[str, Any], name: str) -> tuple[int, ...] | None:
    """A list of token ids; None where the field is missing or null."""
    ids = fields.get(name)
    if ids is None:
        return None
    if not isinstance(ids, list) or any(type(token) is not int for token in ids):
        raise illegal(f"{name} that are not a list of integers", ids)
    return tuple(ids)


def count(value: Any) -> int | None:
    return value if type(value) is int else None


def seconds(milliseconds: Any) -> float | None:
    return milliseconds / 1e3 if type(milliseconds) in (int, float) else None


def illegal(what: str, data: Any) -> EngineError:
    shown = data if isinstance(data, str) else orjson.dumps(data).decode()
    return EngineError(
        f"the server sent {what}: {shown[:200]}; is engine.dialect the one that it speaks?", kind="protocol"
    )
