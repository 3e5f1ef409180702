"""Prompts that nest, token by token: from a turn's text to its ids, also where a chat template rewrites history.

An engine keeps the keys and values of what it has seen, so a prompt costs little when it begins with the previous
prompt and output. Some templates write something else there one turn later: Qwen3 takes back an empty thought, many
drop earlier reasoning, Mistral moves the tools to the last user message. Three answers to that: fail; send the
template's prompts, as a chat server does, and lose the cache from there on; or bridge: keep the ids that there are
and append the new messages only.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from workloads.session import WorkloadError
from workloads.text_encoder import TextEncoder
from workloads.turn_text import TurnText

OnPrefixBreak = Literal["fail", "replay", "bridge"]
CHOICES: tuple[OnPrefixBreak, ...] = get_args(OnPrefixBreak)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixBreak:
    """The template's prompt of a turn does not begin with the prompt and output before it. Lengths in tokens."""

    turn: int
    common: int
    """What the two begin with alike."""
    before: int
    """The previous prompt and output."""
    prompt: int
    """The template's prompt."""

    @property
    def rendered_again(self) -> int:
        """Tokens of the previous prompt and output that the template does not keep."""
        return self.before - self.common


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnIds:
    kept: int | None
    """Tokens of the previous prompt and output that the prompt begins with; None: all."""
    delta: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested:
    turns: tuple[TurnIds, ...]
    breaks: tuple[PrefixBreak, ...]
    reopened: int
    """Prompts cut back because the template opens an answer as the recorded one does not begin."""
    merging: int
    """Outputs that the tokenizer would merge with the end of their prompt (a line break after another).

    The model that wrote them did not: they keep ids of their own."""


def nest(where: str, texts: Iterable[TurnText], encoder: TextEncoder, guard: str, choice: OnPrefixBreak) -> Nested:
    """Encode turn by turn.

    Args:
        where: conversation and template, for errors.

    Raises:
        WorkloadError: a prefix break where ``choice`` is ``fail``, or one that can't be bridged.
    """
    template = _Tape(encoder, guard)  # what the chat template writes
    turns: list[TurnIds] = []
    breaks: list[PrefixBreak] = []
    reopened = merging = 0
    for number, text in enumerate(texts):
        before, kept = len(template.ids), None
        if text.rewrite is not None:
            kept, delta = template.rewrite(text.rewrite.kept, text.rewrite.rest)
            breaks.append(PrefixBreak(turn=number, common=kept, before=before, prompt=len(template.ids)))
        else:
            delta = template.append(text.delta or "")
        if choice == "fail":
            _refuse(where, number, text, breaks)
        if choice == "bridge" and text.rewrite is not None:
            if text.delta is None:
                raise WorkloadError(
                    f"{where} does not show where the new messages of turn {number} begin, so it can't be bridged;"
                    " set workload.on_prefix_break=replay"
                )
            kept, delta = None, list(encoder.encode(text.delta, guard))
        merging += encoder.merges(template.text, text.answer, guard)
        reopened += text.reopened
        turns.append(TurnIds(kept=kept, delta=tuple(delta), output=tuple(template.append(text.answer))))
    return Nested(turns=tuple(turns), breaks=tuple(breaks), reopened=reopened, merging=merging)


def counted(nested: Nested, choice: OnPrefixBreak) -> dict[str, int]:
    """What rewriting did, by reason, for the user to see."""
    counts: Counter[str] = Counter()
    if nested.breaks:
        how = "bridged, the engine keeps what it holds" if choice == "bridge" else "sent as the template writes them"
        what = "prompts that the chat template rewrites"
        counts[f"{what}: turns ({how})"] = len(nested.breaks)
        counts[f"{what}: tokens of the turn before that stay"] = sum(one.common for one in nested.breaks)
        counts[f"{what}: tokens of the turn before written anew"] = sum(one.rendered_again for one in nested.breaks)
    counts["prompts cut back to where the recorded answer begins (the template opens it otherwise)"] = nested.reopened
    return dict(+counts)


def _refuse(where: str, number: int, text: TurnText, breaks: list[PrefixBreak]) -> None:
    remedy = "use a template that appends only, or set workload.on_prefix_break to replay or bridge"
    if breaks:
        raise WorkloadError(
            f"{where} rewrites history: with turn {number}'s prompt only {breaks[-1].common} of the"
            f" {breaks[-1].before} tokens before it stay; {remedy}"
        )
    if text.reopened:
        raise WorkloadError(
            f"{where} opens turn {number}'s answer in a way that the recorded one does not begin"
            f" (reasoning that was not recorded); {remedy}"
        )


class _Tape:
    """A text and its ids, encoded piece by piece."""

    def __init__(self, encoder: TextEncoder, guard: str) -> None:
        self._encoder = encoder
        self._guard = guard
        self._parts: list[str] = []
        self._length = 0
        self.ids: list[int] = []
        self._joints: list[tuple[int, int]] = [(0, 0)]
        """``(characters, ids)`` before each place where the text may be cut and encoded anew."""

    @property
    def text(self) -> str:
        """The last piece: what an answer is appended to."""
        return self._parts[-1] if self._parts else ""

    def append(self, text: str) -> list[int]:
        ids, joints = self._encoder.encode_jointed(text, self._guard)
        self._joints += [(self._length + characters, len(self.ids) + count) for characters, count in joints]
        self.ids += ids
        self._parts.append(text)
        self._length += len(text)
        return ids

    def rewrite(self, kept: int, rest: str) -> tuple[int, list[int]]:
        """Replace all but the first ``kept`` characters; return how many ids stay and the ids after them."""
        whole = "".join(self._parts)
        del self._joints[bisect_right(self._joints, kept, key=lambda joint: joint[0]) :]
        characters, count = self._joints[-1]
        old = self.ids[count:]
        self._parts, self._length = [whole[:characters]], characters
        del self.ids[count:]
        new = self.append(whole[characters:kept] + rest)
        same = next((at for at, (one, other) in enumerate(zip(old, new, strict=False)) if one != other), None)
        alike = min(len(old), len(new)) if same is None else same
        return count + alike, new[alike:]
