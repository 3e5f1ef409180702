"""Text to token ids with special tokens told apart from text that only looks like one."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from workloads.session import WorkloadError

_SPACE = re.compile(r"\s+")


class TextEncoder:
    """A tokenizer that takes special tokens from the template only.

    A tool output may quote ``<|end|>``. Encoded as that token it would end a message in the middle; so such text is
    guarded before it goes through the template, and what is still whole afterwards is the template's own.
    """

    def __init__(self, folder: Path) -> None:
        """Read ``tokenizer.json``.

        Raises:
            WorkloadError: it is missing or can't be read.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise WorkloadError(f"{path}: no such file; name a Hugging Face tokenizer folder")
        text = path.read_text(encoding="utf-8")
        try:
            json.loads(text)  # the library's own error for broken JSON is a bare Exception
        except json.JSONDecodeError as error:
            raise WorkloadError(f"{path}: broken JSON at line {error.lineno}; copy the folder again") from error
        self._tokenizer = Tokenizer.from_str(text)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # special tokens in text are text
        added: Mapping[int, AddedToken] = self._tokenizer.get_added_tokens_decoder()
        self._special = {token.content: (id_, token) for id_, token in added.items() if token.special}
        self._pattern = _any_of(self._special)
        self.vocab_size: int = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        """One more than the highest id."""

    def guard(self, value: Any, guard: str) -> Any:
        """Return the value (text, or JSON with text inside) with each literal special token broken by ``guard``."""
        if isinstance(value, str):
            return self._pattern.sub(lambda match: match[0][0] + guard + match[0][1:], value)
        if isinstance(value, Mapping):
            return {self.guard(key, guard): self.guard(item, guard) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.guard(item, guard) for item in value]
        return value

    def encode(self, text: str, guard: str = "") -> tuple[int, ...]:
        """Return the ids of a template's text; guarded literals become ordinary text again."""
        return tuple(self._pieces(text, guard))

    def _pieces(self, text: str, guard: str) -> Iterator[int]:
        position = 0
        for match in self._pattern.finditer(text):
            id_, token = self._special[match[0]]
            before = text[position : match.start()]
            yield from self._plain(before.rstrip() if token.lstrip else before, guard)
            yield id_
            position = match.end()
            if token.rstrip and (space := _SPACE.match(text, position)):  # the token swallows it
                position = space.end()
        yield from self._plain(text[position:], guard)

    def _plain(self, text: str, guard: str) -> list[int]:
        if guard:
            text = text.replace(guard, "")
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids if text else []
        return ids

    def close(self, text: str) -> tuple[str, str] | None:
        """Cut an answer after its last special token, the one that ends the turn; None without any."""
        end = None
        for match in self._pattern.finditer(text):
            end = match.end()
        return None if end is None else (text[:end], text[end:])

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included; bytes that are no UTF-8 become U+FFFD."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def _any_of(contents: Iterable[str]) -> re.Pattern[str]:
    """A pattern of the longest content at a place.

    Some vocabularies have a thousand special tokens: only where a first letter stands are they tried.
    """
    longest_first = sorted(contents, key=len, reverse=True)
    if not longest_first:
        return re.compile(r"(?!)")
    first = "".join(sorted({re.escape(content[0]) for content in longest_first}))
    return re.compile(f"(?=[{first}])(?:{'|'.join(map(re.escape, longest_first))})")
