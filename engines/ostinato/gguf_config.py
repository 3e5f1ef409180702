"""A GGUF header → the configuration that transformers builds the same model from."""

from collections.abc import Callable
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from engines.ostinato.errors import SetupError
from engines.ostinato.gguf_file import GgufCheckpoint

Key = Callable[..., Any]


def config_of(file: GgufCheckpoint) -> PretrainedConfig:
    """Raises: SetupError: an architecture that can't be served from GGUF, a header without a field it needs."""
    architecture = file.metadata.get("general.architecture")
    family = FAMILIES.get(architecture)
    if family is None or (architecture == "llama" and not file.metadata.get("llama.expert_count")):
        raise SetupError(
            f"{file.folder} holds a model of the kind {architecture}; of GGUF files {', '.join(FAMILIES)} with "
            "experts can be served: take the model's safetensors folder"
        )

    def key(name: str, *default: Any) -> Any:
        value = file.metadata.get(f"{architecture}.{name}", *default)
        if value is None and not default:
            raise SetupError(f"{file.folder} lacks {architecture}.{name} in its header; download the file again")
        return value

    hidden, heads = key("embedding_length"), key("attention.head_count")
    common = {
        "name": file.metadata.get("general.name"),
        "vocab_size": file["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "max_position_embeddings": key("context_length"),
        "num_hidden_layers": key("block_count") - key("nextn_predict_layers", 0),
        "num_attention_heads": heads,
        "num_key_value_heads": key("attention.head_count_kv", heads),
        "head_dim": key("attention.key_length", hidden // heads),
        "rms_norm_eps": key("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(key),
        "num_experts_per_tok": key("expert_used_count"),
        "tie_word_embeddings": "output.weight" not in file,
        "attention_bias": "blk.0.attn_q.bias" in file,
        "dtype": _dtype(file),
        **{
            f"{name}_token_id": file.metadata.get(f"tokenizer.ggml.{long}_token_id")
            for name, long in _SPECIAL.items()
        },
    }
    model_type, build = family
    return AutoConfig.for_model(model_type, **(common | build(key)))


_SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding"}


def _dtype(file: GgufCheckpoint) -> str:
    kinds = set(file.kinds.values())
    return "bfloat16" if kinds & {"BF16", "MXFP4"} else "float16" if "F16" in kinds else "float32"


def _rope(key: Key) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": key("rope.freq_base", 10000.0)}
    kind = key("rope.scaling.type", "none")
    if kind in ("none", ""):
        return rope
    if kind != "yarn":
        raise SetupError(f"the GGUF file scales positions by {kind}; take the model's safetensors folder")
    return rope | {
        "rope_type": "yarn",
        "factor": key("rope.scaling.factor"),
        "original_max_position_embeddings": key("rope.scaling.original_context_length"),
        "beta_fast": key("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": key("rope.scaling.yarn_beta_slow", 1.0),
    }


def _qwen3_moe(key: Key) -> dict[str, Any]:
    return {
        "num_experts": key("expert_count"),
        "moe_intermediate_size": key("expert_feed_forward_length"),
        "intermediate_size": key("feed_forward_length", key("expert_feed_forward_length")),
        "norm_topk_prob": True,
        "mlp_only_layers": [],
    }


def _gpt_oss(key: Key) -> dict[str, Any]:
    rope = _rope(key)
    return {
        "num_local_experts": key("expert_count"),
        "intermediate_size": key("expert_feed_forward_length"),
        "sliding_window": key("attention.sliding_window"),
        # The file does not say that the turning points of the scaling are not rounded: the family's own do not.
        "rope_parameters": rope | ({"truncate": False} if rope["rope_type"] == "yarn" else {}),
    }


def _olmoe(key: Key) -> dict[str, Any]:
    return {
        "num_experts": key("expert_count"),
        "intermediate_size": key("expert_feed_forward_length", key("feed_forward_length", None)),
        "norm_topk_prob": False,
        "clip_qkv": key("attention.clamp_kqv", None),
    }


def _mixtral(key: Key) -> dict[str, Any]:
    return {"num_local_experts": key("expert_count"), "intermediate_size": key("feed_forward_length")}


FAMILIES: dict[Any, tuple[str, Callable[[Key], dict[str, Any]]]] = {
    "qwen3moe": ("qwen3_moe", _qwen3_moe),
    "gpt-oss": ("gpt_oss", _gpt_oss),
    "olmoe": ("olmoe", _olmoe),
    "llama": ("mixtral", _mixtral),
}
"""The architectures by the names that the files give them."""
