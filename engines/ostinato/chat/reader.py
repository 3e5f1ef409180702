"""A model's output, piece by piece as it comes, taken apart into reasoning, content and tool calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engines.ostinato.chat.calls import Call, CallFormat, Schemas


@dataclass(frozen=True, slots=True)
class Part:
    """What became certain with some output; one of the three."""

    content: str = ""
    reasoning: str = ""
    call: Call | None = None


class Reader(Protocol):
    """Reads one answer."""

    markers: tuple[str, ...]
    """Special tokens that must be in its text; all others are left out."""

    def feed(self, text: str) -> list[Part]:
        """Read more text."""

    def end(self) -> list[Part]:
        """What was held back, now that no more comes."""


class Cutter:
    """Cuts text at markers, and holds back what may yet become one."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> None:
        self._held += text

    def next(self, markers: Sequence[str]) -> tuple[str, str | None] | None:
        """(text, the marker after it); the marker is None where there is none yet. None: nothing is certain."""
        found = [(at, marker) for marker in markers if (at := self._held.find(marker)) >= 0]
        if found:
            at, marker = min(found)
            text, self._held = self._held[:at], self._held[at + len(marker) :]
            return text, marker
        keep = 0
        for marker in markers:
            longest = min(len(marker) - 1, len(self._held))
            keep = max(keep, next((n for n in range(longest, 0, -1) if self._held.endswith(marker[:n])), 0))
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return (text, None) if text else None

    def rest(self) -> str:
        """What is held back."""
        text, self._held = self._held, ""
        return text


class BlockReader:
    """Reads formats that put calls in blocks. A block that holds no call is content, as it was written.

    Args:
        form: None where it is unknown: then all is content but reasoning.
        schemas: None where the client offers no tools; so then.
        think: the markers around reasoning; None where the template has none.
        thinking: the prompt has opened the reasoning already.
    """

    def __init__(
        self, form: CallFormat | None, schemas: Schemas | None, *, think: tuple[str, str] | None, thinking: bool
    ) -> None:
        calls = form if schemas is not None else None
        self._calls, self._schemas, self._think = calls, schemas or {}, think
        self._trims = form is None or form.trims
        self._cutter = Cutter()
        self._state = "reasoning" if thinking else "content"
        self._block: list[str] = []
        self._space = ""
        """White space that may turn out to be layout."""
        self._before = ""
        """What stood before the marker of the block that is read."""
        self._at_start = thinking
        """Only white space since a marker; it is layout."""
        self._said = False
        """Content, reasoning or a call: then a marker of reasoning is text."""
        around = calls.around if calls else ()
        ends = [mark for mark in (calls.begin, calls.end) if mark] if calls else []
        self.markers: tuple[str, ...] = (*ends, *around, *(think or ()), *(_INNER if calls else ()))

    def feed(self, text: str) -> list[Part]:
        self._cutter.feed(text)
        parts: list[Part] = []
        while (cut := self._cutter.next(self._wanted())) is not None:
            text, marker = cut
            parts += self._text(text)
            if marker is not None:
                parts += self._mark(marker)
        return parts

    def end(self) -> list[Part]:
        parts = self._text(self._cutter.rest())
        if self._state == "call":
            return parts + self._close("")
        if self._state == "content" and self._space:
            parts.append(Part(content=self._space))
        return parts

    def _wanted(self) -> list[str]:
        if self._state == "reasoning":
            assert self._think is not None
            return [self._think[1]]
        calls = self._calls
        if self._state == "call":
            assert calls is not None
            return [calls.end or calls.begin]
        opening = [self._think[0]] if self._think and not self._said else []
        return [*opening, *((calls.begin, *calls.around) if calls else ())]

    def _text(self, text: str) -> list[Part]:
        if self._state == "call":
            self._block.append(text)
            return []
        if self._trims:
            text = self._space + text
            if self._at_start:
                text = text.lstrip()
            body = text.rstrip()
            self._space = text[len(body) :]
            text = body
        if not text:
            return []
        self._at_start, self._said = False, True
        return [Part(reasoning=text) if self._state == "reasoning" else Part(content=text)]

    def _mark(self, marker: str) -> list[Part]:
        assert self._calls is not None or self._think is not None
        if self._state == "call":
            return self._close(marker)
        self._before = self._space
        self._space, self._at_start, self._said = "", True, True
        if self._think is not None and marker in self._think:
            self._state = "reasoning" if self._state == "content" else "content"
        elif self._calls is not None and marker == self._calls.begin:
            self._state = "call"
        return []

    def _close(self, marker: str) -> list[Part]:
        """A block ended, with its marker or with the answer."""
        calls = self._calls
        assert calls is not None
        block, self._block = "".join(self._block), []
        self._state = "call" if marker == calls.begin else "content"
        before, self._before = self._before, ""
        if found := calls.parse(block, self._schemas):
            self._space, self._at_start = "", True
            return [Part(call=call) for call in found]
        self._at_start = False
        return [Part(content=f"{before}{calls.begin}{block}{marker if marker == calls.end else ''}")]


_INNER = ("<｜tool▁sep｜>", "<|tool_call_argument_begin|>", "<|arguments|>", "<|id|>", "<arg_key>", "</arg_key>")
"""Inside blocks; special tokens in some vocabularies."""
