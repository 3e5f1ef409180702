"""Tiny models as llama.cpp's converter would write them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from families import Tiny
from tokenizers import Tokenizer
from torch import Tensor

from workloads.sample_paths import TOKENIZER

ARCHITECTURES = {"qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss", "olmoe": "olmoe", "mixtral": "llama"}
_KINDS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def write(
    tiny: Tiny, path: Path, kind: str | Callable[[int, str], str] = "F32", dense: str = "F32", most: int = 0
) -> Path:
    """``kind`` of the experts, or of a layer's matrix: F32, F16, BF16, MXFP4 or what else gguf can quantise.

    With ``most`` tensors a part it is cut; returns the (first) file.
    """
    architecture = ARCHITECTURES[tiny.family]
    plain = tiny.plain()
    config = plain.config
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=most)
    _write_header(writer, config)
    arch = next(a for a, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, tensor in plain.state_dict().items():
        if ".experts." in name:
            layer = int(name.split(".")[2])
            for matrix, value in _split(name.rpartition(".")[2], tensor, plain.model.layers[layer].mlp.experts):
                suffix = "bias" if name.endswith("_bias") else "weight"
                own = kind if isinstance(kind, str) else kind(layer, matrix)
                _add(writer, f"blk.{layer}.ffn_{matrix}_exps.{suffix}", value, "F32" if suffix == "bias" else own)
            continue
        mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert mapped is not None, name
        if name.endswith("sinks"):
            mapped += ".weight"
        if architecture == "llama" and ".attn_q." in mapped:
            tensor = _rotated(tensor, config.num_attention_heads)
        if architecture == "llama" and ".attn_k." in mapped:
            tensor = _rotated(tensor, config.num_key_value_heads)
        _add(writer, mapped, tensor, dense if tensor.dim() > 1 else "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return min(path.parent.glob(f"{path.stem}-00001-of-*.gguf")) if most else path


def _add(writer: Any, name: str, tensor: Tensor, kind: str) -> None:
    values = tensor.detach().float().contiguous().numpy()
    type_ = gguf.GGMLQuantizationType[kind]
    if kind in ("F32", "F16"):
        writer.add_tensor(name, values.astype(np.float32 if kind == "F32" else np.float16))
        return
    content = gguf.quants.quantize(values, type_)
    writer.add_tensor(name, content, raw_dtype=type_)


def _split(name: str, tensor: Tensor, module: Any) -> list[tuple[str, Tensor]]:
    """Experts' matrices ``[E, rows, columns]`` or biases ``[E, rows]``."""
    if module.is_transposed and not name.endswith("_bias"):
        tensor = tensor.mT
    if not name.startswith("gate_up"):
        return [("down", tensor)]
    gate, up = tensor.chunk(2, 1) if module.is_concatenated else (tensor[:, 0::2], tensor[:, 1::2])
    return [("gate", gate), ("up", up)]


def _rotated(weight: Tensor, heads: int) -> Tensor:
    """llama.cpp's order of the rows that one rotary pair takes."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def _write_header(writer: Any, config: Any) -> None:
    writer.add_name("tiny")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if config.model_type == "gpt_oss":
        writer.add_sliding_window(config.sliding_window)
    writer.add_expert_count(getattr(config, "num_experts", None) or config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if config.model_type != "mixtral":
        writer.add_expert_feed_forward_length(
            getattr(config, "moe_intermediate_size", None) or config.intermediate_size
        )
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    known = tokenizer.get_vocab_size()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokenizer.id_to_token(i) if i < known else f"[PAD{i}]" for i in range(config.vocab_size)])
    writer.add_token_types([1] * config.vocab_size)
