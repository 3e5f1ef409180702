"""Lays out a model's weights in a safetensors folder or a GGUF file: headers first, the weights' places after."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.synthetic_draw import Weight
from engines.synthetic_tokenizer import FILES, Tokenizer

SHARD_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Place:
    """Where a weight's first byte goes."""

    path: Path
    offset: int
    wide: bool = False
    """Stored as float32, which holds every bfloat16 exactly."""


def lay_out_safetensors(
    folder: Path, weights: Sequence[Weight], config: dict[str, Any], tokenizer: Path, shard_bytes: int
) -> dict[str, Place]:
    """Write everything of a Hugging Face model folder but the weights themselves; return their places by name."""
    shards: list[list[Weight]] = [[]]
    room = shard_bytes
    for weight in weights:
        if shards[-1] and weight.size * 2 > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(weight)
        room -= weight.size * 2
    places: dict[str, Place] = {}
    for number, shard in enumerate(shards, 1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        places |= _safetensors(folder / name, shard)
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(weight.size * 2 for weight in weights)},
            "weight_map": {name: place.path.name for name, place in places.items()},
        }
        _dump(folder / "model.safetensors.index.json", index)
    for name in FILES:
        if (tokenizer / name).exists():
            shutil.copyfile(tokenizer / name, folder / name)
    generation = {key: config[key] for key in ("eos_token_id", "pad_token_id") if config[key] is not None}
    _dump(folder / "generation_config.json", generation | {"do_sample": False})
    _dump(folder / "config.json", config)
    return places


def _safetensors(path: Path, weights: Sequence[Weight]) -> dict[str, Place]:
    """One file: a little-endian length, a JSON header, the tensors. The library's own writer wants all in memory."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for weight in weights:
        start, end = end, end + weight.size * 2
        header[weight.name] = {"dtype": "BF16", "shape": list(weight.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    base = 8 + len(text)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(base + end)
    return {weight.name: Place(path, base + header[weight.name]["data_offsets"][0]) for weight in weights}


def lay_out_gguf(
    path: Path, weights: Sequence[Weight], config: dict[str, Any], tokenizer: Tokenizer
) -> dict[str, Place]:
    """Write a qwen3moe GGUF file's header; return the weights' places by their Hugging Face names."""
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType

    writer = GGUFWriter(path, "qwen3moe")
    writer.add_name(config["name"])
    writer.add_file_type(LlamaFileType.MOSTLY_BF16)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_vocab_size(config["vocab_size"])
    _add_tokenizer(writer, tokenizer, config["vocab_size"])

    stacks: dict[str, list[Weight]] = {}
    for weight in weights:
        stacks.setdefault(weight.gguf_name, []).append(weight)
    offsets: dict[str, int] = {}
    end = 0
    for name, parts in stacks.items():
        first = parts[0]
        shape = (len(parts), *first.shape) if len(parts) > 1 or "_exps" in name else first.shape
        size = sum(part.size for part in parts) * (4 if _wide(first) else 2)
        kind = GGMLQuantizationType.F32 if _wide(first) else GGMLQuantizationType.BF16
        writer.add_tensor_info(name, shape, np.dtype(np.uint16), size, raw_dtype=kind)
        offsets[name] = end
        end += writer.ggml_pad(size, writer.data_alignment)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()

    base = writer.ggml_pad(path.stat().st_size, writer.data_alignment)
    with path.open("r+b") as file:
        file.truncate(base + end)
    return {
        part.name: Place(path, base + offsets[name] + part.gguf_part * part.size * 2, _wide(part))
        for name, parts in stacks.items()
        for part in parts
    }


def _wide(weight: Weight) -> bool:
    # llama.cpp's own converter keeps norms and routers in float32.
    return len(weight.shape) == 1 or weight.gguf_name.endswith("ffn_gate_inp.weight")


def _add_tokenizer(writer: Any, tokenizer: Tokenizer, vocab_size: int) -> None:
    from gguf import TokenType

    def kind(id_: int) -> TokenType:
        if id_ not in tokenizer.tokens:
            return TokenType.UNUSED
        if id_ in tokenizer.special:
            return TokenType.CONTROL
        return TokenType.USER_DEFINED if id_ in tokenizer.added else TokenType.NORMAL

    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokenizer.tokens.get(id_, f"[PAD{id_}]") for id_ in range(vocab_size)])
    writer.add_token_types([kind(id_) for id_ in range(vocab_size)])
    writer.add_token_merges(list(tokenizer.merges))
    writer.add_add_bos_token(False)
    if tokenizer.eos_id is not None:
        writer.add_eos_token_id(tokenizer.eos_id)
    if tokenizer.pad_id is not None:
        writer.add_pad_token_id(tokenizer.pad_id)


def _dump(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
