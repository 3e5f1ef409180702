"""Token ids to bytes and text to ids, from a model folder's ``tokenizer.json`` or a GGUF file."""

import json
import re
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer


@lru_cache(maxsize=1)
def _tokenizer(path: Path) -> Tokenizer:
    """Kept, since engine and chat both want it: reading one takes up to a second."""
    if path.suffix == ".gguf":
        from engines.ostinato.gguf_tokenizer import tokenizer_of

        return tokenizer_of(path)
    return Tokenizer.from_file(str(path))


def vocabulary_path(model: Path) -> Path:
    """Where a model's tokenizer is: tokenizer.json in its folder or beside a GGUF file, or that file itself."""
    beside = (model.parent if model.suffix == ".gguf" else model) / "tokenizer.json"
    return model if model.suffix == ".gguf" and not beside.is_file() else beside


class Vocabulary:
    """A tokenizer as the server needs it: nothing added to a text."""

    def __init__(self, path: Path) -> None:
        self._tokenizer = _tokenizer(path)
        state = self._tokenizer.get_added_tokens_decoder()
        self._special = {id_ for id_, token in state.items() if token.special}
        self._added = set(state)
        # A byte-level vocabulary spells a space as Ġ; SentencePiece ones spell it as ▁ and odd bytes as <0x0A>.
        self._byte_level = self._tokenizer.token_to_id("Ġ") is not None
        self._bytes: dict[int, bytes] = {}

    def encode(self, text: str) -> list[int]:
        """The text's ids."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes a token stands for; empty for special tokens and for ids without one."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def special(self) -> dict[int, str]:
        """The special tokens, which ``bytes_of`` leaves out, as they are written in a prompt."""
        return {id_: str(self._tokenizer.id_to_token(id_)) for id_ in self._special}

    def _spell(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self._special:
            return b""
        if token_id in self._added:
            return str(token).encode()
        if self._byte_level:
            return bytes(_byte_alphabet()[character] for character in token)
        if byte := re.fullmatch(r"<0x([0-9A-F]{2})>", token):
            return bytes.fromhex(byte[1])
        return str(token).replace("▁", " ").encode()


def end_ids(folder: Path) -> frozenset[int]:
    """The tokens that end an answer: by ``generation_config.json``, else ``config.json``, else the tokenizer."""
    for name in ("generation_config.json", "config.json"):
        found = _fields(folder / name).get("eos_token_id")
        if found is not None:
            return frozenset([found] if isinstance(found, int) else found)
    token = _fields(folder / "tokenizer_config.json").get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    found = _tokenizer(vocabulary_path(folder)).token_to_id(text) if text else None
    return frozenset() if found is None else frozenset([found])


def _fields(path: Path) -> dict[str, Any]:
    """A JSON file's, or none: whatever is wrong with it, others say."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


@cache
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: bytes that print stand for themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
