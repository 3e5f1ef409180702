"""Recorded conversations to token ids, with a Hugging Face tokenizer folder whose chat template only appends.

The ids of a session are put together from pieces: what the template writes between two answers, and each answer. So
prompts nest token by token whatever BPE would merge across a seam, as they do in a model that generated the answers.
What a template can break is the nesting of its *text*: some rewrite history (they drop earlier reasoning, or move
tools to the last user message). ``Renderer`` refuses a conversation where that happens.
"""

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from workloads.chat_template import ChatTemplate, as_dict
from workloads.conversation import Conversation, Message, Role, ToolCall
from workloads.session import Session, Turn, TurnKind, WorkloadError
from workloads.text_encoder import TextEncoder

_ROLES: tuple[Role, ...] = get_args(Role)

# Unicode noncharacters, "never to be interchanged": a recording holds one by accident only.
_NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """A conversation ready for the template, up to its last model turn."""

    name: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    answers: Sequence[int]
    """Index of each message that the model wrote."""
    guard: str
    marks: tuple[str, str]


class Renderer:
    """Turns recorded conversations into sessions."""

    def __init__(self, folder: Path) -> None:
        """Read a tokenizer folder: ``tokenizer.json`` and a chat template.

        Raises:
            WorkloadError: one of them is missing or broken.
        """
        self._folder = folder
        self._encoder = TextEncoder(folder)
        self._template = ChatTemplate(folder)
        self._raw_arguments = self._template.takes_raw_arguments()
        self._one_pass = self._template.marks_answers and self._is_stable()

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return self._encoder.vocab_size

    @property
    def tokenizer_hash(self) -> str:
        """sha256 of all that ids depend on: tokenizer, its configuration and the chat template."""
        sha = hashlib.sha256()
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            path = self._folder / name
            data = path.read_bytes() if path.is_file() else b""
            sha.update(len(data).to_bytes(8, "little") + data)
        return sha.hexdigest()

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included; bytes that are no UTF-8 become U+FFFD."""
        return self._encoder.decode(ids)

    def render(self, conversation: Conversation) -> Session:
        """Return the session: one turn for each message of origin ``model``.

        Given answers (a greeting that no model wrote) stand in the prompt. What comes after the last model turn asks
        for no answer and is left out. ``tool_wait_s`` is the time from the previous answer to the message that ends
        this turn's prompt; None on the first turn, where no message lies between, where either moment was not
        recorded, and where the recording's clock stepped back.

        Raises:
            WorkloadError: an unknown role, no model turn, text that is no Unicode, or a template that rewrites
                history or does not close an answer with a special token; the message names the conversation.
        """
        text = self._prepare(conversation)
        pieces = self._marked(text) if self._one_pass else self._nested(text)
        turns = [
            Turn(
                kind=_kind(conversation.messages, index, first=number == 0),
                delta_ids=self._encoder.encode(delta, text.guard),
                output_ids=self._encoder.encode(answer, text.guard),
                tool_wait_s=_tool_wait_s(conversation.messages, text.answers, number),
            )
            for number, (index, (delta, answer)) in enumerate(zip(text.answers, pieces, strict=True))
        ]
        return Session(
            session_id=conversation.conversation_id,
            source=conversation.source,
            turns=tuple(turns),
            task_id=conversation.task_id,
        )

    def _prepare(self, conversation: Conversation) -> _Text:
        name = conversation.conversation_id
        for index, message in enumerate(conversation.messages):
            if message.role not in _ROLES:
                raise WorkloadError(
                    f"{name}: message {index} has the unknown role {message.role!r}; known are {', '.join(_ROLES)}"
                )
        answers = [index for index, message in enumerate(conversation.messages) if message.origin == "model"]
        if not answers:
            raise WorkloadError(f"{name}: no message has origin model, so there is no turn to replay; leave it out")
        replayed = conversation.messages[: answers[-1] + 1]
        messages = [as_dict(message, raw_arguments=self._raw_arguments) for message in replayed]
        guard, *marks = _absent_characters(name, [messages, conversation.tools])
        return _Text(
            name=name,
            messages=self._encoder.guard(messages, guard),
            tools=self._encoder.guard(conversation.tools, guard),
            answers=answers,
            guard=guard,
            marks=(marks[0], marks[1]),
        )

    def _marked(self, text: _Text) -> list[tuple[str, str]]:
        """``(delta, answer)`` of each turn from one rendering; linear in the conversation's length."""
        whole = self._written(text, text.messages, marks=text.marks)
        parts = whole.replace(text.marks[1], text.marks[0]).split(text.marks[0])
        assistants = [index for index, message in enumerate(text.messages) if message["role"] == "assistant"]
        if len(parts) != 2 * len(assistants) + 1:
            raise WorkloadError(
                f"{text.name}: the chat template in {self._folder} marks some answers only; mark all of them"
            )
        wanted, delta = set(text.answers), ""
        pieces: list[tuple[str, str]] = []
        for index, before, answer in zip(assistants, parts[0::2], parts[1::2], strict=False):
            delta += before
            if index in wanted:
                closed, rest = self._closed(text, len(pieces), answer)
                pieces.append((delta, closed))
                delta = rest
            else:
                delta += answer
        return pieces

    def _nested(self, text: _Text) -> list[tuple[str, str]]:
        """``(delta, answer)`` of each turn from a rendering of each prompt: slower, and checks every one of them."""
        past = ""
        pieces: list[tuple[str, str]] = []
        for number, index in enumerate(text.answers):
            prompt = self._written(text, text.messages[:index], prompt=True)
            answered = self._written(text, text.messages[: index + 1])
            self._require_prefix(text, number, past, prompt, "prompt")
            self._require_prefix(text, number, prompt, answered, "answer")
            answer, _ = self._closed(text, number, answered[len(prompt) :])
            pieces.append((prompt[len(past) :], answer))
            past = prompt + answer
        return pieces

    def _written(
        self,
        text: _Text,
        messages: Sequence[Mapping[str, Any]],
        *,
        prompt: bool = False,
        marks: tuple[str, str] = ("", ""),
    ) -> str:
        try:
            return self._template.render(messages, text.tools, prompt=prompt, marks=marks)
        except WorkloadError as error:
            raise WorkloadError(f"{text.name}: {error}") from error

    def _require_prefix(self, text: _Text, number: int, past: str, now: str, what: str) -> None:
        if now.startswith(past):
            return
        had, has = (self._encoder.encode(part, text.guard) for part in (past, now))
        kept = next((at for at, (a, b) in enumerate(itertools.zip_longest(had, has)) if a != b), len(had))
        raise WorkloadError(
            f"{text.name}: the chat template in {self._folder} rewrites history: with turn {number}'s {what} only"
            f" {kept} of the {len(had)} tokens before it stay; use a template that appends only"
        )

    def _closed(self, text: _Text, number: int, answer: str) -> tuple[str, str]:
        closed = self._encoder.close(answer)
        if closed is None:
            raise WorkloadError(
                f"{text.name}: the chat template in {self._folder} does not close turn {number}'s answer with a"
                " special token, so nothing would tell the engine where it ends; use a template that does"
            )
        return closed

    def _is_stable(self) -> bool:
        """Whether one rendering gives what rendering each prompt gives, on a conversation with all there can be."""
        try:
            probe = self._prepare(_PROBE)
            return self._marked(probe) == self._nested(probe)
        except WorkloadError:
            return False


def _kind(messages: Sequence[Message], index: int, *, first: bool) -> TurnKind:
    """What the prompt before ``messages[index]`` ends with, answers in between (given, or several in a row) aside."""
    if first:
        return "first"
    before = (messages[at].role for at in range(index - 1, -1, -1))
    return "tool" if next((role for role in before if role in ("tool", "user")), "user") == "tool" else "user"


def _tool_wait_s(messages: Sequence[Message], answers: Sequence[int], number: int) -> float | None:
    if number == 0 or answers[number] == answers[number - 1] + 1:
        return None
    answered, sent = messages[answers[number - 1]].time_s, messages[answers[number] - 1].time_s
    if answered is None or sent is None or sent < answered:
        return None
    return sent - answered


def _absent_characters(name: str, value: Any) -> tuple[str, str, str]:
    """Three characters that occur nowhere in the value's text."""
    text = json.dumps(value, ensure_ascii=False, default=dict)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise WorkloadError(
            f"{name}: the text {text[error.start - 20 : error.start]!r} is followed by half a surrogate"
            " pair, which no tokenizer takes; replace it"
        ) from error
    free = list(itertools.islice((character for character in _NONCHARACTERS if character not in text), 3))
    if len(free) < 3:
        raise WorkloadError(
            f"{name}: the text uses nearly all of Unicode's noncharacters U+FDD0 to U+FDEF; remove some"
        )
    return free[0], free[1], free[2]


def _answer(content: str = "", reasoning: str | None = None, calls: Sequence[str] = ()) -> Message:
    tool_calls = tuple(ToolCall(name="probe", arguments='{"n": 1}', call_id=call_id) for call_id in calls)
    return Message(role="assistant", origin="model", content=content, reasoning=reasoning, tool_calls=tool_calls)


def _given(role: Role, call_id: str | None = None) -> Message:
    name = "probe" if role == "tool" else None
    return Message(role=role, origin="given", content="probe", tool_call_id=call_id, name=name)


_PROBE = Conversation(
    conversation_id="probe",
    source="probe",
    tools=({"type": "function", "function": {"name": "probe", "parameters": {"type": "object"}}},),
    messages=(
        _given("system"),
        _given("user"),
        _answer("probe", "probe"),
        _given("user"),
        _answer("probe", "probe", ["probe0001", "probe0002"]),
        _given("tool", "probe0001"),
        _given("tool", "probe0002"),
        _answer("", "probe", ["probe0003"]),
        _given("tool", "probe0003"),
        _answer("probe"),
        _given("user"),
        _answer("probe", "probe"),
        _given("user"),
        _answer("probe"),
    ),
)
"""Every kind of message before every other: where templates rewrite history, they do it here."""
