"""What a model folder and a GGUF file need to know of a Hugging Face tokenizer folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.base import EngineError

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
"""Files of a tokenizer; all but the first two may be absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """A byte-level BPE vocabulary."""

    tokens: dict[int, str]
    """Id → token in the byte-level alphabet; ids may have holes."""
    special: frozenset[int]
    added: frozenset[int]
    merges: tuple[str, ...]
    """Pairs as ``left right``, best first."""
    eos_id: int | None
    pad_id: int | None


def read_tokenizer(folder: Path) -> Tokenizer:
    """Read ``tokenizer.json`` and ``tokenizer_config.json``.

    Raises:
        EngineError: a file is missing, broken, or no BPE tokenizer.
    """
    path = folder / "tokenizer.json"
    content = _json(path)
    model = content.get("model", {})
    if model.get("type") != "BPE":
        raise EngineError(f"{path}: model.type is {model.get('type')!r}; bring a BPE tokenizer")
    added = content.get("added_tokens", [])
    ids: dict[str, int] = model["vocab"] | {token["content"]: token["id"] for token in added}
    config = _json(folder / "tokenizer_config.json")
    return Tokenizer(
        tokens={id_: token for token, id_ in ids.items()},
        special=frozenset(token["id"] for token in added if token["special"]),
        added=frozenset(token["id"] for token in added),
        merges=tuple(pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]),
        eos_id=_id(config.get("eos_token"), ids),
        pad_id=_id(config.get("pad_token"), ids),
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EngineError(
            f"{path} is missing; set the model's tokenizer to a Hugging Face tokenizer folder"
        ) from error
    except ValueError as error:
        raise EngineError(f"{path} is not valid JSON: {error}") from error
    return content


def _id(token: str | dict[str, Any] | None, ids: dict[str, int]) -> int | None:
    return ids.get(token["content"] if isinstance(token, dict) else token) if token else None
