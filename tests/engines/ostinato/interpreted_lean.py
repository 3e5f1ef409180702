"""Lean decoder layers of the named models in Triton's interpreter, on the CPU.

Prints name → (layers replaced, largest difference) as JSON. A program of its own: ``TRITON_INTERPRET`` must be set
before the kernels are imported and holds for the process.
"""

import json
import os
import sys
import tempfile

os.environ["TRITON_INTERPRET"] = "1"

from pathlib import Path
from typing import Any

import torch
from families import Tiny, difference

from engines.ostinato import lean_decode
from engines.ostinato.assembly import Options, open_engine
from engines.ostinato.forward import OwnKv
from engines.ostinato.lean_layer import Lean

PROMPT, STEPS = 90, 2
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen3_moe": ("qwen3_moe", "float32", {}),
    "qwen3_moe, odd sizes": (
        "qwen3_moe", "float32",
        {"hidden_size": 80, "head_dim": 64, "num_attention_heads": 3, "num_key_value_heads": 1, "num_experts": 10,
         "num_experts_per_tok": 3, "moe_intermediate_size": 48},
    ),
    "qwen3_moe, wide heads": (
        "qwen3_moe", "float32",
        {"head_dim": 128, "num_attention_heads": 8, "num_key_value_heads": 8, "norm_topk_prob": True,
         "attention_bias": True},
    ),
    "qwen3_moe float16": ("qwen3_moe", "float16", {"num_experts_per_tok": 8, "norm_topk_prob": True}),
    "mixtral": ("mixtral", "float32", {"sliding_window": 20}),
    "gpt_oss": ("gpt_oss", "float32", {"attention_bias": True}),
    "olmoe": ("olmoe", "float32", {}),
    "glm4_moe": ("glm4_moe", "float32", {}),
}  # fmt: skip


def check(family: str, dtype: str, changes: dict[str, Any], folder: Path) -> tuple[int, float]:
    """Layers replaced, and how far the logits of single tokens behind a prompt are from plain transformers'."""
    model = Tiny(family, folder, **changes)
    engine = open_engine(Options(model=folder, device="cpu", threads=1, dtype=dtype, chunk=64, context=1024))
    own = engine._forward
    assert isinstance(own, OwnKv)
    replaced = lean_decode.install(own, Lean(parts=4, span=16))
    engine.prefill(model.ids[:PROMPT])
    got = torch.stack([engine.logits([token]) for token in model.ids[PROMPT : PROMPT + STEPS]])
    engine.experts.cpu.close()
    engine.experts.pool.store.close()
    return replaced, difference(got, model.wanted[PROMPT : PROMPT + STEPS])


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {}
    for name in sys.argv[1:]:
        family, dtype, changes = MODELS[name]
        with tempfile.TemporaryDirectory() as folder:
            found[name] = check(family, dtype, changes, Path(folder))
    print(json.dumps(found))
