"""Text to token ids with special tokens told apart from text that only looks like one."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from workloads.session import WorkloadError

_SPACE = re.compile(r"\s+")
_STRUCTURE = re.compile(r"<[|｜][^<>]+[|｜]>")
"""What marks roles and calls. DeepSeek's tokenizers, for one, do not list theirs as special tokens."""
_SEEN_AT_A_JOINT = 64
"""Characters after a joint that can change how the text before it is cut: more than a word."""
_REMEMBERED = 256
"""Texts whose ids are kept: sessions of one source share a system prompt and tools of 10,000 tokens."""


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
            content = json.loads(text)  # the library's own error for broken JSON is a bare Exception
        except json.JSONDecodeError as error:
            raise WorkloadError(f"{path}: broken JSON at line {error.lineno}; copy the folder again") from error
        self._tokenizer = Tokenizer.from_str(_structure_is_special(text, content))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # special tokens in text are text
        added: Mapping[int, AddedToken] = self._tokenizer.get_added_tokens_decoder()
        self._special = {token.content: (id_, token) for id_, token in added.items() if token.special}
        self._pattern = _any_of(self._special)
        self._plain_ids = lru_cache(_REMEMBERED)(self._encoded)
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
        return tuple(self.encode_jointed(text, guard)[0])

    def encode_jointed(self, text: str, guard: str = "") -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids, and ``(characters, ids)`` before each place that no merge crosses: after special tokens.

        Text cut at such a place has the same ids as the whole.
        """
        ids: list[int] = []
        joints: list[tuple[int, int]] = []
        position = 0
        for match in self._pattern.finditer(text):
            id_, token = self._special[match[0]]
            before = text[position : match.start()]
            ids += self._plain(before.rstrip() if token.lstrip else before, guard)
            ids.append(id_)
            position = match.end()
            if token.rstrip and (space := _SPACE.match(text, position)):  # the token swallows it
                position = space.end()
            joints.append((position, len(ids)))
        ids += self._plain(text[position:], guard)
        return ids, joints

    def _plain(self, text: str, guard: str) -> tuple[int, ...]:
        return self._plain_ids(text.replace(guard, "") if guard else text) if text else ()

    def _encoded(self, text: str) -> tuple[int, ...]:
        # The batch call is the only one that leaves out offsets into the text, which cost as much as the ids.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return tuple(encoding.ids)

    def merges(self, before: str, after: str, guard: str = "") -> bool:
        """Whether the ids of the two texts joined differ, at the joint, from the ids of each."""
        tail = before[max((match.end() for match in self._pattern.finditer(before)), default=0) :]
        head = after[:_SEEN_AT_A_JOINT]
        special = self._pattern.search(head)
        head = head[: special.start()] if special else head
        apart = self._plain(tail, guard)
        return bool(tail and head) and self._plain(tail + head, guard)[: len(apart)] != apart

    def close(self, text: str) -> tuple[str, str] | None:
        """Cut an answer after the special token that ends it; None when more than white space follows the last."""
        end = None
        for match in self._pattern.finditer(text):
            end = match.end()
        return None if end is None or text[end:].strip() else (text[:end], text[end:])

    def whole_tokens(self, text: str, length: int) -> int:
        """The length, cut back so that it ends after a special token or white space: inside no token."""
        ends = {match.end() for match in self._pattern.finditer(text)}
        return next((at for at in range(length, 0, -1) if at in ends or text[at - 1].isspace()), 0)

    def leading_special(self, text: str) -> str | None:
        """The special token that the text begins with."""
        match = self._pattern.match(text)
        return match[0] if match else None

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens included; bytes that are no UTF-8 become U+FFFD."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def _structure_is_special(text: str, content: Any) -> str:
    """A tokenizer's JSON with every added token that looks like a role marker listed as special."""
    added = content.get("added_tokens", ()) if isinstance(content, dict) else ()
    unlisted = [token for token in added if not token["special"] and _STRUCTURE.fullmatch(token["content"])]
    if not unlisted:
        return text
    for token in unlisted:
        token["special"] = True
    return json.dumps(content)


def _any_of(contents: Iterable[str]) -> re.Pattern[str]:
    """A pattern of the longest content at a place.

    Some vocabularies have a thousand special tokens: only where the first two letters of one stand are they tried.
    """
    longest_first = sorted(contents, key=len, reverse=True)
    if not longest_first:
        return re.compile(r"(?!)")
    beginnings = "|".join(sorted({re.escape(content[:2]) for content in longest_first}))
    return re.compile(f"(?={beginnings})(?:{'|'.join(map(re.escape, longest_first))})")
