"""One line of talk of a Claude Code session, put together from its records."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from workloads.conversation import Conversation, Message, ToolCall
from workloads.formats.chat import NOT_TEXT
from workloads.formats.openai_message import REBUILT_ARGUMENTS, optional_text
from workloads.formats.pairing import pair_results
from workloads.formats.recognise import looks_like
from workloads.formats.times import time_s
from workloads.session import WorkloadError

SOURCE = "claude_code"
SYNTHETIC = "<synthetic>"

NO_PROMPT = "sessions without system prompt and tool schemas, which Claude Code does not log"
OWN_NOTES = "answers that Claude Code wrote itself (errors of the service)"
REWOUND = "messages that the user rewound, left out"
RESULT_BETWEEN = "turns whose first results were logged before their last calls; all results stand after the turn"


@dataclass(slots=True, kw_only=True)
class Thread:
    name: str
    session: str
    part: int = 1
    """Counts what compaction cut the session into."""
    messages: list[Message] = field(default_factory=list)
    losses: Counter[str] = field(default_factory=Counter)
    _turns: dict[str, int] = field(default_factory=dict)
    """Index of the message of each ``message.id``."""
    _ends: dict[str, int] = field(default_factory=dict)
    """How many messages there were after the record of each uuid."""

    def add(self, place: str, record: Mapping[str, Any]) -> None:
        """Add what a record of type user or assistant says.

        Raises:
            WorkloadError: a field of the wrong type.
        """
        message, at = record["message"], time_s(record.get("timestamp"), place)
        if record["type"] == "user":
            parts = _parts(message["content"])
            if not any(part.get("type") == "tool_result" for part in parts):
                self._rewind(record.get("parentUuid"))
            self._add_user(place, parts, at)
        elif record.get("isApiErrorMessage") or message.get("model") == SYNTHETIC:
            self.losses[OWN_NOTES] += 1
        else:
            self._add_answer(place, message, at)
        self.losses[NOT_TEXT] += _strays(message["content"])
        if isinstance(record.get("uuid"), str):
            self._ends[record["uuid"]] = len(self.messages)

    def conversation(self, general: Mapping[str, int]) -> Conversation:
        """Return the conversation; ``general`` is what was lost of the file as a whole."""
        losses = self.losses + Counter(general)
        losses[NO_PROMPT] += 1
        return Conversation(
            conversation_id=self.name if self.part == 1 else f"{self.name}/part {self.part}",
            source=SOURCE,
            task_id=self.session,
            messages=tuple(pair_results(self.messages, losses)),
            losses=+losses,
        )

    def _rewind(self, parent: Any) -> None:
        """Drop what followed the record that a prompt continues, where an answer is among it."""
        end = self._ends.get(parent) if isinstance(parent, str) else None
        if end is None or not any(message.role == "assistant" for message in self.messages[end:]):
            return
        self.losses[REWOUND] += len(self.messages) - end
        del self.messages[end:]
        self._turns = {key: index for key, index in self._turns.items() if index < end}
        self._ends = {uuid: after for uuid, after in self._ends.items() if after <= end}

    def _add_user(self, place: str, parts: list[dict[str, Any]], at: float | None) -> None:
        texts = []
        for part in parts:
            kind = part.get("type")
            if kind == "tool_result":
                content = _text(_parts(part.get("content") or ""), self.losses)
                call_id = optional_text(part.get("tool_use_id"), f"{place}, tool_use_id")
                self.messages.append(
                    Message(role="tool", origin="given", content=content, tool_call_id=call_id, time_s=at)
                )
            else:
                texts.append(part)
        if texts:
            content = _text(texts, self.losses)
            self.messages.append(Message(role="user", origin="given", content=content, time_s=at))

    def _add_answer(self, place: str, message: Mapping[str, Any], at: float | None) -> None:
        parts = _parts(message["content"])
        reasoning = [part for part in parts if part.get("type") == "thinking"]
        calls = [part for part in parts if part.get("type") == "tool_use"]
        rest = [part for part in parts if part.get("type") not in ("thinking", "tool_use")]
        thought = "".join(part["thinking"] for part in reasoning if isinstance(part.get("thinking"), str))
        answer = Message(
            role="assistant",
            origin="model",
            content=_text(rest, self.losses),
            reasoning=thought or None,
            tool_calls=tuple(self._call(place, part) for part in calls),
            time_s=at,
        )
        message_id = optional_text(message.get("id"), f"{place}, message.id")
        index = self._turns.get(message_id) if message_id else None
        if index is None:
            if message_id:
                self._turns[message_id] = len(self.messages)
            self.messages.append(answer)
            return
        before = self.messages[index]
        self.losses[RESULT_BETWEEN] += index < len(self.messages) - 1
        self.messages[index] = replace(
            before,
            content=before.content + answer.content,
            reasoning=f"{before.reasoning or ''}{answer.reasoning or ''}" or None,
            tool_calls=before.tool_calls + answer.tool_calls,
            time_s=before.time_s if at is None else at,
        )

    def _call(self, place: str, part: Mapping[str, Any]) -> ToolCall:
        name = part.get("name")
        if not isinstance(name, str):
            raise WorkloadError(f"{place}: tool_use has no name but {looks_like(name)}; fix or delete this line")
        self.losses[REBUILT_ARGUMENTS] += 1
        return ToolCall(
            name=name,
            arguments=json.dumps(part.get("input") or {}, ensure_ascii=False),
            call_id=optional_text(part.get("id"), f"{place}, tool_use id"),
        )


def _parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _strays(content: Any) -> int:
    return sum(not isinstance(part, dict) for part in content) if isinstance(content, list) else 0


def _text(parts: list[dict[str, Any]], losses: Counter[str]) -> str:
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    losses[NOT_TEXT] += len(parts) - len(texts)
    return "".join(texts)
