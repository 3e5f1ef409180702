"""A message read from a request log, which repeats it in every later prompt."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from workloads.conversation import Message

PROMPTS_HELD = 64


@dataclass(frozen=True, kw_only=True)
class Read:
    message: Message
    losses: Mapping[str, int]
    """What was lost when it was read."""

    @cached_property
    def key(self) -> bytes:
        """Equal for messages that differ only as answers do when an agent sends them back: stripped, rewritten."""
        message = self.message
        calls = [(call.name, _canonical(call.arguments), call.call_id) for call in message.tool_calls]
        content = message.content.strip() if message.role == "assistant" else message.content
        return hashlib.sha256(json.dumps([message.role, content, message.tool_call_id, calls]).encode()).digest()


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


class PromptReader:
    """Reads prompts; of one that begins like an earlier one only what is new, so a session takes linear time."""

    def __init__(self, read: Callable[[Any, str], Read]) -> None:
        """Take what reads one entry at one place."""
        self._read = read
        self._held: OrderedDict[tuple[str | None, ...], tuple[list[Any], list[Read]]] = OrderedDict()

    def prompt(self, entries: list[Any], place: str) -> list[Read]:
        """Return the messages of a prompt.

        Raises:
            WorkloadError: as what reads an entry.
        """
        # System prompt and first user message tell sessions apart.
        start = tuple(entry.get("content") if isinstance(entry, dict) else None for entry in entries[:2])
        start = tuple(content if isinstance(content, str) else None for content in start)
        earlier, reads = self._held.pop(start, ([], []))
        same = next(
            (number for number, (a, b) in enumerate(zip(earlier, entries, strict=False)) if a != b),
            min(len(earlier), len(entries)),
        )
        found = reads[:same] + [
            self._read(entry, f"{place}, message {number}")
            for number, entry in enumerate(entries[same:], start=same + 1)
        ]
        self._held[start] = (entries, found)
        if len(self._held) > PROMPTS_HELD:
            self._held.popitem(last=False)
        return found
