"""gpt-oss: every message of an answer has a header with its channel and, for a tool call, whom it goes to."""

import re

from engines.ostinato.chat.calls import Call
from engines.ostinato.chat.reader import Cutter, Part

SHOWS = "<|channel|>"
"""What a template of this format contains."""
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")


class HarmonyReader:
    """Channel ``analysis`` is reasoning; ``final``, and ``commentary`` to nobody, are content."""

    markers: tuple[str, ...] = ("<|channel|>", "<|constrain|>", "<|message|>", *_ENDS)

    def __init__(self) -> None:
        self._cutter = Cutter()
        self._header: list[str] = []
        self._body: list[str] = []
        self._in_header = True  # the prompt ends inside the first one
        self._said = False

    def feed(self, text: str) -> list[Part]:
        self._cutter.feed(text)
        parts: list[Part] = []
        while (cut := self._cutter.next(["<|message|>"] if self._in_header else _ENDS)) is not None:
            text, marker = cut
            parts += self._text(text)
            if marker == "<|message|>":
                self._in_header, self._body = False, []
            elif marker is not None:
                parts += self._close()
        return parts

    def end(self) -> list[Part]:
        parts = self._text(self._cutter.rest())
        if not self._in_header:
            return parts + self._close()
        text = "".join(self._header)
        # A model that was cut off in a header, or one that does not know the format.
        return parts if self._said or not text else [*parts, Part(content=text)]

    def _text(self, text: str) -> list[Part]:
        if self._in_header:
            self._header.append(text)
            return []
        if not text:
            return []
        self._said = True
        header = "".join(self._header)
        if _recipient(header) is not None:
            self._body.append(text)
            return []
        return [Part(reasoning=text) if _channel(header) == "analysis" else Part(content=text)]

    def _close(self) -> list[Part]:
        to = _recipient("".join(self._header))
        self._header, self._in_header = [], True
        return [] if to is None else [Part(call=Call(to.removeprefix("functions."), "".join(self._body).strip()))]


def _recipient(header: str) -> str | None:
    match = re.search(r"\bto=([^\s<]+)", header)
    return match[1] if match else None


def _channel(header: str) -> str | None:
    match = re.search(r"<\|channel\|>\s*(\w+)", header)
    return match[1] if match else None
