"""Token ids to bytes and text to ids, from a model folder's ``tokenizer.json``."""

import re
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer


class Vocabulary:
    """A tokenizer as the server needs it: no chat template, nothing added to a text."""

    def __init__(self, path: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(path))
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


@cache
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins: bytes that print stand for themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
