"""Train the bundled tokenizer: ``python -m workloads.train_tokenizer``.

A byte-level BPE of 4,096 ids, GPT-2's pre-tokenizer and no normalizer, so that any text round-trips and llama.cpp
can carry it as its ``gpt-2`` kind. It is trained on the bundled conversations and on sources of Python's standard
library, so it needs no download. Another Python has other sources and gives other merges: ``tokenizer_config.json``
names the version and the digest of the text that the committed one was trained on.
"""

import hashlib
import json
import platform
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from workloads.conversation import Conversation
from workloads.formats import conversation_json
from workloads.sample_paths import CONVERSATIONS, TOKENIZER

VOCAB_SIZE = 4096

SPECIAL_TOKENS = (
    "<|pad|>",
    "<|end|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|tools|>",
    "<|think|>",
    "<|answer|>",
    "<|call|>",
    "<|id|>",
    "<|arguments|>",
    "<|result|>",
)

# Prose and code in about equal parts; 2 MB train in seconds.
STANDARD_LIBRARY = (
    "argparse.py",
    "configparser.py",
    "csv.py",
    "dataclasses.py",
    "difflib.py",
    "doctest.py",
    "email/message.py",
    "functools.py",
    "ipaddress.py",
    "json/decoder.py",
    "logging/__init__.py",
    "optparse.py",
    "os.py",
    "pathlib.py",
    "pydoc.py",
    "pydoc_data/topics.py",
    "random.py",
    "shutil.py",
    "smtplib.py",
    "string.py",
    "subprocess.py",
    "textwrap.py",
    "traceback.py",
    "unittest/case.py",
    "urllib/parse.py",
)


def corpus() -> list[str]:
    """The texts trained on: the bundled conversations' fields and this Python's sources, in a fixed order."""
    texts = [text for conversation in conversation_json.load(CONVERSATIONS) for text in _fields(conversation)]
    library = Path(sysconfig.get_path("stdlib"))
    return texts + [(library / name).read_text(encoding="utf-8") for name in STANDARD_LIBRARY]


def _fields(conversation: Conversation) -> Iterable[str]:
    for tool in conversation.tools:
        yield json.dumps(tool, ensure_ascii=False)
    for message in conversation.messages:
        yield message.content
        if message.reasoning:
            yield message.reasoning
        for call in message.tool_calls:
            yield call.name
            yield call.arguments


def digest(texts: Sequence[str]) -> str:
    """sha256 over the texts, each with its length."""
    sha = hashlib.sha256()
    for text in texts:
        data = text.encode()
        sha.update(len(data).to_bytes(8, "little"))
        sha.update(data)
    return sha.hexdigest()


def train(texts: Sequence[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Return a byte-level BPE whose first ids are the special tokens; the same texts give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write(folder: Path, texts: Sequence[str]) -> None:
    """Train and write ``tokenizer.json`` and ``tokenizer_config.json`` beside the hand-written chat template."""
    train(texts).save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "additional_special_tokens": [token for token in SPECIAL_TOKENS if token not in ("<|end|>", "<|pad|>")],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
        "trained_with_python": platform.python_version(),
        "trained_on_sha256": digest(texts),
    }
    text = json.dumps(config, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def main() -> None:
    write(TOKENIZER, corpus())
    print(f"{TOKENIZER}: {VOCAB_SIZE:,} ids")


if __name__ == "__main__":
    main()
