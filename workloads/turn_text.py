"""What a chat template writes for each turn: the text that a prompt adds, and the answer.

Two ways lead there. Rendering every prompt and every answer shows all that a template does, at a cost that grows with
the square of a session. One rendering, cut where the template begins each message, is linear; it is taken where it
gives the same on a probe of this kind of conversation and on a few prompts of the session itself.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workloads.chat_template import ChatTemplate
from workloads.conversation import Role
from workloads.session import WorkloadError
from workloads.text_encoder import TextEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A conversation ready for the template."""

    name: str
    messages: Sequence[Mapping[str, Any]]
    """Up to the last answer."""
    tools: Sequence[Mapping[str, Any]]
    answers: Sequence[int]
    """Index of each message that the model wrote."""
    following: Sequence[Role]
    """Role of the message after each answer; after the last one, of the one that would follow."""
    guard: str
    marks: tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """The template's prompt is not its previous prompt, the answer and more."""

    kept: int
    """Characters of the text before (prompt and answer) that stand."""
    rest: str
    """The prompt after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnText:
    delta: str | None
    """What the prompt adds to the previous prompt and answer; after a rewrite the text of the new messages only, None
    where it can't be told."""
    answer: str
    """Up to the special token that ends the turn."""
    rewrite: Rewrite | None = None
    reopened: bool = False
    """The template's prompt opens an answer as this one does not begin, and was cut back to where they agree."""


class TurnWriter:
    """Cuts what one template writes into turns."""

    def __init__(self, template: ChatTemplate, encoder: TextEncoder, ends: Mapping[Role, str]) -> None:
        """``ends``: for templates that don't close an answer, the special token that opens a message of a role."""
        self._template = template
        self._encoder = encoder
        self._ends = ends

    def one_by_one(self, rows: Rows, *, new_messages: bool = True) -> Iterator[TurnText]:
        """Render each prompt and each answer; and after a rewrite, where asked for, the new messages.

        Raises:
            WorkloadError: the template refuses a message, does not close an answer, or rewrites a prompt when its
                answer comes.
        """
        past, before = "", -1
        for number, index in enumerate(rows.answers):
            prompt = self._written(rows, index, prompt=True)
            opened, answer = self._answer(rows, number, prompt)
            rewrite, delta = None, None
            if opened.startswith(past):
                delta = opened[len(past) :]
            else:
                kept = common_length(past, opened)
                rewrite = Rewrite(kept=kept, rest=opened[kept:])
                delta = self._new_messages(rows, number - 1, before, index, len(opened)) if new_messages else None
            yield TurnText(delta=delta, answer=answer, rewrite=rewrite, reopened=opened != prompt)
            past, before = opened + answer, index

    def at_once(self, rows: Rows) -> list[TurnText] | None:
        """Cut one rendering; None where it can't be cut, or where a prompt that was rendered to check differs."""
        whole, starts = self._marked(rows, len(rows.messages))
        openings: dict[str, str] = {}
        turns: list[TurnText] = []
        # The last prompt is among them: nearly the whole text, rendered without marks.
        checked, past = _quarterings(len(rows.answers) - 1), 0
        for number, index in enumerate(rows.answers):
            start, end = starts.get(index), starts.get(index + 1, len(whole))
            before = str(rows.messages[index - 1]["role"]) if index else ""
            if start is None:
                return None
            exact = None
            if number in checked or before not in openings:
                exact = self._exact(rows, number, whole)
                if exact is None or exact[0] < start:
                    return None
                openings.setdefault(before, whole[start : exact[0]])
            begin = start + len(openings[before])
            answer = self._closed(rows, number, whole[begin:end])
            cut = (whole.startswith(openings[before], start), begin <= end, past <= begin)
            last = number == len(rows.answers) - 1
            if not all(cut) or not (last or whole.startswith(answer, begin)) or exact not in (None, (begin, answer)):
                return None
            turns.append(TurnText(delta=whole[past:begin], answer=answer))
            past = begin + len(answer)
        return turns

    def _exact(self, rows: Rows, number: int, whole: str) -> tuple[int, str] | None:
        """Where a turn's answer begins in the whole text, and the answer, from renderings of their own."""
        index = rows.answers[number]
        prompt = self._written(rows, index, prompt=True)
        answered = whole if index + 1 == len(rows.messages) else self._written(rows, index + 1)
        if not (whole.startswith(prompt) and answered.startswith(prompt)):
            return None
        return len(prompt), self._closed(rows, number, answered[len(prompt) :])

    def _answer(self, rows: Rows, number: int, prompt: str) -> tuple[str, str]:
        """The prompt, up to where the answer begins as the template opened it, and the answer."""
        index = rows.answers[number]
        answered, starts = self._marked(rows, index + 1)
        if answered.startswith(prompt):
            return prompt, self._closed(rows, number, answered[len(prompt) :])
        bare = self._written(rows, index)
        start = starts.get(index, len(bare) if answered.startswith(bare) else None)
        if start is None or not prompt.startswith(bare):
            raise WorkloadError(
                f"{rows.name}: the chat template in {self._template.name} rewrites turn {number}'s prompt when its"
                " answer comes, so no prompt leads to that answer; use another template"
            )
        opening, segment = prompt[len(bare) :], answered[start:]
        agreed = self._encoder.whole_tokens(opening, common_length(opening, segment))
        return bare + opening[:agreed], self._closed(rows, number, segment[agreed:])

    def _new_messages(self, rows: Rows, number: int, answer: int, index: int, prompt_length: int) -> str | None:
        """What a prompt holds after the turn before: the text after the special token that ends its answer."""
        prompt, starts = self._marked(rows, index, prompt=True)
        prompt = prompt[:prompt_length]
        start = starts.get(answer)
        if start is None:
            return None
        bare_end = starts[answer + 1] if answer + 1 in starts else len(self._written(rows, index))
        if (closed := self._encoder.close(prompt[start:bare_end])) is not None:
            return prompt[start + len(closed[0]) :]
        end = self._ends.get(rows.following[number], "")
        return prompt[bare_end + len(end) :] if end and prompt.startswith(end, bare_end) else None

    def _closed(self, rows: Rows, number: int, answer: str) -> str:
        closed = self._encoder.close(answer)
        if closed is not None:
            return closed[0]
        end = self._ends.get(rows.following[number])
        if end:
            return answer + end
        raise WorkloadError(
            f"{rows.name}: the chat template in {self._template.name} does not close turn {number}'s answer with a"
            " special token of this tokenizer, so nothing would tell the engine where it ends; use the template and"
            " the tokenizer of one model"
        )

    def _marked(self, rows: Rows, count: int, *, prompt: bool = False) -> tuple[str, dict[int, int]]:
        """The text of the first messages, and where each begins in it; empty where that can't be told."""
        text = self._written(rows, count, prompt=prompt, marks=rows.marks)
        pattern = re.compile(f"{rows.marks[0]}([0-9]+){rows.marks[1]}")
        starts: dict[int, int] = {}
        marks = 0
        for match in pattern.finditer(text):
            starts[int(match[1])] = match.start() - marks  # the last pass over the messages is the one that writes
            marks += len(match[0])
        in_order = [starts[index] for index in sorted(starts)]
        return pattern.sub("", text), starts if in_order == sorted(in_order) else {}

    def _written(self, rows: Rows, count: int, *, prompt: bool = False, marks: tuple[str, str] | None = None) -> str:
        try:
            return self._template.render(rows.messages[:count], rows.tools, prompt=prompt, marks=marks)
        except WorkloadError as error:
            raise WorkloadError(f"{rows.name}: {error}") from error


def common_length(one: str, other: str) -> int:
    """How many characters two texts begin with alike, by halving: comparing slices is fast."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _quarterings(last: int) -> set[int]:
    """The last, a quarter of it, a sixteenth, …: few, and together hardly longer than the last alone."""
    found = set()
    while last > 0:
        found.add(last)
        last //= 4
    return found
