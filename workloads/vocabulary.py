"""Which ids of a tokenizer are plain text and no special tokens."""

from itertools import pairwise
from pathlib import Path

from workloads.formats.containers import read_json
from workloads.session import WorkloadError

TOKENIZER_FILE = "tokenizer.json"


def plain_ids(tokenizer: Path, vocab_size: int) -> range:
    """Return the longest run of ids below ``vocab_size`` that holds no added (special) token.

    Raises:
        WorkloadError: no readable ``tokenizer.json`` in the folder.
    """
    file = tokenizer / TOKENIZER_FILE
    content = read_json(file) if file.is_file() else None
    if not isinstance(content, dict):
        raise WorkloadError(f"{tokenizer}: holds no {TOKENIZER_FILE}; name a tokenizer folder in Hugging Face form")
    added = {token["id"] for token in content.get("added_tokens", ())}
    bounds = [-1, *sorted(one for one in added if one < vocab_size), vocab_size]
    runs = [range(low + 1, high) for low, high in pairwise(bounds)]
    return max(runs, key=len)
