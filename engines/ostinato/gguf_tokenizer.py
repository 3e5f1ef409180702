"""A tokenizer from what a GGUF header holds, for the vocabularies whose way of splitting text is known here."""

from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from engines.ostinato import gguf_header
from engines.ostinato.errors import SetupError

_CONTROL, _USER_DEFINED = 3, 4
_END = r"\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SPLITS = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _END,
    "qwen2": _SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" + _END,
    "llama-bpe": _SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|" + _END,
    "gpt-4o": rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SHORT}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SHORT}?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|" + _END,
}


def tokenizer_of(path: Path) -> Tokenizer:
    """A byte-level tokenizer.

    Raises:
        SetupError: another kind of vocabulary; a tokenizer.json beside the file is then needed.
    """
    metadata = gguf_header.read(path).fields
    model, split = (metadata.get(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
    if model != "gpt2" or split not in _SPLITS:
        raise SetupError(
            f"{path} has a vocabulary of the kind {model}/{split}; put the model's tokenizer.json beside the file"
        )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [
        (left, right)
        for left, _, right in (merge.partition(" ") for merge in metadata.get("tokenizer.ggml.merges", []))
    ]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)}, merges=merges, ignore_merges=split == "llama-bpe"
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLITS[split]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata.get("tokenizer.ggml.token_type", [])
    added = [(token, kind) for token, kind in zip(tokens, kinds, strict=False) if kind in (_CONTROL, _USER_DEFINED)]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in added if k == _CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, k in added if k == _USER_DEFINED])
    return tokenizer
