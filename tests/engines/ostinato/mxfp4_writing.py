"""A tiny gpt-oss model with MXFP4 experts, as the published ones are stored."""

import json
import shutil
from pathlib import Path

import gguf
import torch
from families import Tiny
from safetensors.torch import load_file, save_file


def as_mxfp4(model: Tiny, folder: Path) -> Path:
    """A gpt-oss folder with the layout of the published one; the values are those of the gguf package's rounding."""
    shutil.copytree(model.folder, folder)
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        values = weights.pop(name).mT.contiguous().numpy()
        blocks = torch.from_numpy(gguf.quants.quantize(values, gguf.GGMLQuantizationType.MXFP4))
        blocks = blocks.view(*values.shape[:2], -1, 17)
        low, high = blocks[..., 1:] & 15, blocks[..., 1:] >> 4
        codes = torch.cat([low, high], -1)
        weights[f"{name}_blocks"] = (codes[..., 0::2] | codes[..., 1::2] << 4).contiguous()
        weights[f"{name}_scales"] = blocks[..., 0].contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def dequantised(folder: Path) -> dict[str, torch.Tensor]:
    """Experts' weights as transformers makes them of MXFP4."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    weights = load_file(folder / "model.safetensors")
    return {
        name.removesuffix("_blocks"): convert_moe_packed_tensors(
            weights[name], weights[name.replace("_blocks", "_scales")], dtype=torch.float32
        )
        for name in weights
        if name.endswith("_blocks")
    }
