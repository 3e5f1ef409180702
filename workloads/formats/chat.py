"""The fields of a recorded chat message, checked."""

from collections import Counter
from typing import Any, get_args

from workloads.conversation import Role
from workloads.formats.recognise import looks_like
from workloads.session import WorkloadError

ROLES: tuple[Role, ...] = get_args(Role)

NULL_CONTENT = "contents that were null, read as empty text"
NOT_TEXT = "parts of a content that are not text (images and the like)"


def role_of(entry: Any, place: str) -> Role:
    """Return the message's role.

    Raises:
        WorkloadError: no message at all, or a role that chat completions do not have.
    """
    if not isinstance(entry, dict):
        raise WorkloadError(f"{place}: expected a message, found {looks_like(entry)}")
    for role in ROLES:
        if entry.get("role") == role:
            return role
    raise WorkloadError(f"{place}: unknown role {entry.get('role')!r}; known are {', '.join(ROLES)}")


def text_of(content: Any, place: str, losses: Counter[str]) -> str:
    """Return a message's text as it is, whitespace included; a list of parts is joined.

    Raises:
        WorkloadError: content that is neither null, text nor a list.
    """
    if content is None:
        losses[NULL_CONTENT] += 1
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise WorkloadError(f"{place}: content must be text or a list of parts, found {looks_like(content)}")
    texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    losses[NOT_TEXT] += len(content) - len(texts)
    return "".join(texts)


def list_of(value: Any, place: str, what: str) -> list[Any]:
    """Return a list that may be null.

    Raises:
        WorkloadError: a value of another type.
    """
    if value is not None and not isinstance(value, list):
        raise WorkloadError(f"{place}: {what} must be a list, found {looks_like(value)}")
    return value or []
