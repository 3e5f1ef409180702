"""Where the bundled sample lives."""

from pathlib import Path

CONVERSATIONS = Path(__file__).parent / "sample"
"""Recorded conversations, one JSON file each (``formats/conversation_json.py``)."""

TOKENIZER = CONVERSATIONS / "tokenizer"
"""A byte-level BPE with a prefix-stable chat template (``train_tokenizer.py``)."""
