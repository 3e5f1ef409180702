"""Recorded conversations to token ids, with any Hugging Face tokenizer and chat template.

The ids of a session are put together from pieces: what the template writes between two answers, and each answer. So
prompts nest token by token whatever BPE would merge across a seam, as they do in a model that generated the answers.
What a template can break is the nesting of its *text* (`workloads.prefix`), and it can leave out what was recorded
(`workloads.template_probe`); both are refused unless asked for, and then counted.
"""

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, get_args

from workloads.chat_template import ChatTemplate
from workloads.conversation import Conversation, Message, Role
from workloads.message_form import as_dict
from workloads.prefix import CHOICES, OnPrefixBreak, PrefixBreak, counted, nest
from workloads.session import Session, Turn, TurnKind, WorkloadError
from workloads.shape import Shape, shape, shaped
from workloads.template_probe import Outcome, losses, message_form, probe, turn_ends
from workloads.text_encoder import TextEncoder
from workloads.turn_text import Rows, TurnText, TurnWriter

_ROLES: tuple[Role, ...] = get_args(Role)

# Unicode noncharacters, "never to be interchanged": a recording holds one by accident only.
_NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A session, and what became of the recording on the way."""

    session: Session
    breaks: tuple[PrefixBreak, ...]
    merging: int
    """Outputs that the tokenizer would merge with their prompt if they were one text; they keep ids of their own."""
    losses: Mapping[str, int]
    """What the template left out or wrote differently, by reason."""

    @property
    def share_rendered_again(self) -> float:
        """Of the tokens that stood before each rewritten prompt, the part that the template does not keep."""
        before = sum(one.before for one in self.breaks)
        return sum(one.rendered_again for one in self.breaks) / before if before else 0.0


class Renderer:
    """Turns recorded conversations into sessions."""

    def __init__(
        self,
        folder: Path,
        *,
        chat_template: Path | None = None,
        on_prefix_break: str = "fail",
        allow_template_loss: bool = False,
    ) -> None:
        """Read a tokenizer folder: ``tokenizer.json`` and a chat template.

        Args:
            chat_template: a jinja file to take instead of the folder's.
            on_prefix_break: ``fail``, ``replay`` or ``bridge`` where the template rewrites history.
            allow_template_loss: render although the template leaves out what a conversation holds.

        Raises:
            WorkloadError: a file is missing or broken, or the choice is none of these.
        """
        if on_prefix_break not in CHOICES:
            raise WorkloadError(f"workload.on_prefix_break={on_prefix_break!r}: set it to {', '.join(CHOICES)}")
        self._choice: OnPrefixBreak = on_prefix_break
        self._allow_loss = allow_template_loss
        self._folder = folder
        self._encoder = TextEncoder(folder)
        self._template = ChatTemplate(folder, chat_template)
        self._template_was_given = chat_template is not None
        self._form = message_form(self._template)
        ends = {
            role: self._encoder.leading_special(end) for role, end in turn_ends(self._template, self._form).items()
        }
        self._writer = TurnWriter(
            self._template, self._encoder, {role: end for role, end in ends.items() if end is not None}
        )
        self._is_cut_at_once = lru_cache(maxsize=None)(self._cuts_at_once)

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
        if self._template_was_given:
            sha.update(self._template.source.encode())
        return sha.hexdigest()

    @cached_property
    def outcomes(self) -> Mapping[str, Outcome]:
        """What the template does with each field of a message."""
        return probe(self._template, self._form)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included; bytes that are no UTF-8 become U+FFFD."""
        return self._encoder.decode(ids)

    def render(self, conversation: Conversation) -> Session:
        """Return the session of `rendered`."""
        return self.rendered(conversation).session

    def rendered(self, conversation: Conversation) -> Rendered:
        """Return the session, one turn for each message of origin ``model``, with its breaks and losses.

        Given answers (a greeting that no model wrote) stand in the prompt. What comes after the last model turn asks
        for no answer and is left out. ``tool_wait_s`` is the time from the previous answer to the message that ends
        this turn's prompt; None on the first turn, where no message lies between, where either moment was not
        recorded, and where the recording's clock stepped back.

        Raises:
            WorkloadError: an unknown role, no model turn, text that is no Unicode, a template that rewrites history,
                leaves out what the conversation holds or does not close an answer with a special token; the message
                names the conversation.
        """
        rows = self._rows(conversation)
        lost = losses(conversation, self.outcomes)
        if lost and not self._allow_loss:
            raise WorkloadError(
                f"{conversation.conversation_id}: the chat template in {self._template.name} leaves out what was"
                f" recorded ({', '.join(f'{field}: {count}' for field, count in lost.items())}); use the template"
                " of a model with tools, or set workload.allow_template_loss=true"
            )
        texts = self._texts(rows, shape(conversation))
        nested = nest(
            f"{rows.name}: the chat template in {self._template.name}", texts, self._encoder, rows.guard, self._choice
        )
        turns = [
            Turn(
                kind=_kind(conversation.messages, index, first=number == 0),
                delta_ids=ids.delta,
                output_ids=ids.output,
                tool_wait_s=_tool_wait_s(conversation.messages, rows.answers, number),
                kept_ids=ids.kept,
            )
            for number, (index, ids) in enumerate(zip(rows.answers, nested.turns, strict=True))
        ]
        session = Session(
            session_id=conversation.conversation_id,
            source=conversation.source,
            turns=tuple(turns),
            task_id=conversation.task_id,
        )
        left_out = {f"left out by the chat template: {field}": count for field, count in lost.items()}
        return Rendered(
            session=session,
            breaks=nested.breaks,
            merging=nested.merging,
            losses={**left_out, **counted(nested, self._choice)},
        )

    def _rows(self, conversation: Conversation) -> Rows:
        name = conversation.conversation_id
        for index, message in enumerate(conversation.messages):
            if message.role not in _ROLES:
                raise WorkloadError(
                    f"{name}: message {index} has the unknown role {message.role!r}; known are {', '.join(_ROLES)}"
                )
        answers = [index for index, message in enumerate(conversation.messages) if message.origin == "model"]
        if not answers:
            raise WorkloadError(f"{name}: no message has origin model, so there is no turn to replay; leave it out")
        messages = [as_dict(message, self._form) for message in conversation.messages[: answers[-1] + 1]]
        guard, *marks = _absent_characters(name, [messages, conversation.tools])
        return Rows(
            name=name,
            messages=self._encoder.guard(messages, guard),
            tools=self._encoder.guard(conversation.tools, guard),
            answers=answers,
            following=[_following(conversation.messages, index) for index in answers],
            guard=guard,
            marks=(marks[0], marks[1]),
        )

    def _texts(self, rows: Rows, kind: Shape) -> Iterable[TurnText]:
        texts = self._writer.at_once(rows) if self._is_cut_at_once(kind) else None
        if texts is None:
            return self._writer.one_by_one(rows, new_messages=self._choice == "bridge")
        return texts

    def _cuts_at_once(self, kind: Shape) -> bool:
        """Whether one rendering gives what rendering each prompt gives, on a conversation of this shape."""
        try:
            rows = self._rows(shaped(kind))
            return self._writer.at_once(rows) == list(self._writer.one_by_one(rows))
        except WorkloadError:
            return False


def _following(messages: Sequence[Message], index: int) -> Role:
    """The role of the next message; where there is none, of the one that this answer asks for."""
    if index + 1 < len(messages):
        return messages[index + 1].role
    return "tool" if messages[index].tool_calls else "user"


def _kind(messages: Sequence[Message], index: int, *, first: bool) -> TurnKind:
    """What the prompt before ``messages[index]`` ends with, answers in between (given, or several in a row) aside."""
    if first:
        return "first"
    before = (messages[at] for at in range(index - 1, -1, -1))
    ends = next((message for message in before if message.role in ("tool", "user")), None)
    return "tool" if ends is not None and (ends.role == "tool" or ends.carries_result) else "user"


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
