"""Tiny random models of the families, saved as a user's model folder would be."""

import json
import random
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from workloads.sample_paths import TOKENIZER

_BASE: dict[str, Any] = {
    "vocab_size": 4096, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "max_position_embeddings": 2048,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 32},
    "deepseek_v3": {
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 2, "topk_group": 1,
        "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8, "v_head_dim": 16, "num_key_value_heads": 4,
    },
    "glm4_moe": {
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1,
        "head_dim": 16,
    },
    "deepseek_v4": {
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 32,
        "qk_rope_head_dim": 8, "q_lora_rank": 16, "o_lora_rank": 16, "o_groups": 2, "num_key_value_heads": 1,
        "index_n_heads": 2, "index_head_dim": 16, "index_topk": 8, "num_hidden_layers": 3, "num_hash_layers": 1,
    },
}  # fmt: skip


def make(family: str, folder: Path, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """Save a random model of the family in ``folder``; ``changes`` are of its configuration."""
    config = AutoConfig.for_model(family, **(_BASE | FAMILIES[family] | changes))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:  # wide enough that routes differ and the best logit stands out
            torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
        elif "bias" in name or "sinks" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TOKENIZER / name, folder / name)
    assert json.loads((folder / "config.json").read_text())["model_type"] == family
    return folder


class Tiny:
    """A saved model, a text that is longer than any sliding window, and what plain transformers makes of it."""

    def __init__(self, family: str, folder: Path, **changes: Any) -> None:
        self.family = family
        self.folder = make(family, folder, **changes)
        self.ids = random.Random(0).choices(range(4096), k=100)

    def plain(self, dtype: torch.dtype = torch.float32) -> Any:
        """transformers' own model with its own experts and eager attention."""
        return AutoModelForCausalLM.from_pretrained(self.folder, attn_implementation="eager", dtype=dtype).eval()

    def logits(self, ids: list[int]) -> torch.Tensor:
        """Of one plain float32 pass over all of the text, ``[T, V]``."""
        with torch.inference_mode():
            found: torch.Tensor = self._plain(torch.tensor([ids])).logits[0]
        return found

    @cached_property
    def wanted(self) -> torch.Tensor:
        """``[T, V]`` of ``ids``."""
        return self.logits(self.ids)

    @cached_property
    def _plain(self) -> Any:
        return self.plain()


def difference(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest one, in parts of the largest value."""
    return float((got.float() - wanted.float()).abs().max() / wanted.abs().max())
