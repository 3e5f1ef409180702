"""Recorded model calls put together to conversations: a call continues the one whose prompt and answer it repeats."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workloads.conversation import Conversation, Message
from workloads.formats.openhands import NO_TOOLS
from workloads.formats.pairing import pair_results
from workloads.formats.read_message import Read

OTHER_CHOICES = "further answers to one request (n > 1), of which the one that the session went on with is replayed"
CHANGED = "answers that the agent sent back changed; later prompts hold what the model wrote"
BRANCH = "calls that go on from a point another call went on from, replayed as sessions of their own"
RETRY = "calls with the prompt of an earlier call, replayed as sessions of their own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request with its answers."""

    group: str
    """Calls of different groups are never one conversation: a session id, a trace, a file."""
    prompt: Sequence[Read]
    answers: Sequence[Read]
    """One a choice; at least one."""
    tools: tuple[Mapping[str, Any], ...] = ()
    sent_s: float | None = None
    """Seconds since any fixed moment; None when it was not recorded."""
    duration_s: float | None = None
    """From request to the end of the answer."""


class CallLog:
    """Takes calls one by one, none before a call it continues; each becomes a model turn of exactly one conversation.

    Prompts are held as what they add, so memory grows with the conversations and not with the prompts.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._threads: list[_Thread] = []
        self._tails: dict[bytes, tuple[_Thread, int]] = {}
        self._prompts: set[bytes] = set()

    def add(self, call: Call) -> None:
        """Take a call."""
        digests = _digests(call)
        thread = None
        branches = False
        for kept in range(len(call.prompt), 0, -1):
            if digests[kept] in self._tails:
                found, choice = self._tails[digests[kept]]
                branches = not found.ends_with(digests[kept])
                if not branches:
                    thread = found
                    thread.go_on(call, kept, choice)
                break
        if thread is None:
            thread = _Thread(call)
            self._threads.append(thread)
            repeats = digests[-1] in self._prompts
            thread.losses[RETRY] += repeats
            thread.losses[BRANCH] += branches and not repeats
        self._prompts.add(digests[-1])
        thread.tails = [_extended(digests[-1], answer) for answer in call.answers]
        for choice, tail in reversed(list(enumerate(thread.tails))):
            self._tails[tail] = (thread, choice)

    def conversations(self, general: Mapping[str, int]) -> Iterator[Conversation]:
        """Yield the conversations, in the order of their first calls.

        Args:
            general: what was lost beside conversations (calls without an answer); the first conversation reports it.
        """
        numbers: Counter[str] = Counter()
        for thread in self._threads:
            numbers[thread.group] += 1
            yield thread.conversation(self._source, numbers[thread.group], general)
            general = {}


class _Thread:
    """A conversation that may go on."""

    def __init__(self, call: Call) -> None:
        self.group = call.group
        self.losses: Counter[str] = Counter()
        self.tails: list[bytes] = []
        """Digest of the conversation with each answer to its last call."""
        self._last = call
        self._messages: list[Message] = []
        self._ask(call, 0)

    def ends_with(self, digest: bytes) -> bool:
        return digest in self.tails

    def go_on(self, call: Call, kept: int, choice: int) -> None:
        """Add a call whose prompt is the last call's prompt, one of its answers, and what stands from ``kept`` on."""
        answer, sent = self._last.answers[choice].message, call.prompt[kept - 1].message
        self.losses[CHANGED] += (sent.content, sent.tool_calls) != (answer.content, answer.tool_calls)
        self._answer(choice)
        self._ask(call, kept)

    def conversation(self, source: str, number: int, general: Mapping[str, int]) -> Conversation:
        """Return what was gathered; the last call's first answer ends it."""
        self._answer(0)
        losses = self.losses + Counter(general)
        messages = tuple(pair_results(self._messages, losses))
        losses[NO_TOOLS] += not self._last.tools and any(message.tool_calls for message in messages)
        return Conversation(
            conversation_id=self.group if number == 1 else f"{self.group}/{number}",
            source=source,
            task_id=self.group,
            messages=messages,
            tools=self._last.tools,
            losses=+losses,
        )

    def _ask(self, call: Call, kept: int) -> None:
        for read in call.prompt[kept:]:
            self.losses.update(read.losses)
            self._messages.append(read.message)
        if len(call.prompt) > kept:
            self._messages[-1] = replace(self._messages[-1], time_s=call.sent_s)
        self._last = replace(call, prompt=())

    def _answer(self, choice: int) -> None:
        answer = self._last.answers[choice]
        self.losses.update(answer.losses)
        self.losses[OTHER_CHOICES] += len(self._last.answers) - 1
        sent_s, duration_s = self._last.sent_s, self._last.duration_s
        answered_s = None if sent_s is None or duration_s is None else sent_s + duration_s
        self._messages.append(replace(answer.message, time_s=answered_s, latency_s=duration_s))


def _digests(call: Call) -> list[bytes]:
    """A digest of each beginning of the prompt, the empty one first; group and tools are part of them."""
    digests = [hashlib.sha256(json.dumps([call.group, call.tools], default=str).encode()).digest()]
    for read in call.prompt:
        digests.append(_extended(digests[-1], read))
    return digests


def _extended(before: bytes, read: Read) -> bytes:
    return hashlib.sha256(before + read.key).digest()
