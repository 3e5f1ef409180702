"""Loading: memory holds the experts once, and what is wrong with a folder is said in a line."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")

import sparse_model
import torch
from safetensors.torch import load_file, save_file

from engines.ostinato.errors import SetupError
from engines.ostinato.loading import load_model
from engines.synthetic_moe import SyntheticMoe

Get = Callable[..., Any]
ROOT = Path(__file__).parents[3]
_LOADER = """
import resource, sys, torch
from pathlib import Path
import engines.ostinato.assembly
from engines.ostinato.loading import load_model

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

torch.set_num_threads(1)
torch.nn.Linear(8, 8)
before = peak()
kept = load_model(Path(sys.argv[1]), device=torch.device("cpu"), dtype="bfloat16")
print(kept.store.nbytes, peak() - before)
"""


def test_memory_holds_the_experts_once(tmp_path: Path) -> None:
    spec = SyntheticMoe(layers=2, experts=32, experts_per_token=2, hidden=1024, expert_width=512, head_dim=32)
    size = sparse_model.write(spec, tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-c", _LOADER, str(tmp_path / "model")],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    stored, grown = map(int, done.stdout.split())
    assert 0.9 * size < stored < size, "the experts are most of this model"
    # The bound of a real model, 3 GiB, is a tenth of its size; what an import brings in later is in here too.
    assert grown < 1.15 * size + (48 << 20)


def said(folder: Path) -> str:
    with pytest.raises(SetupError) as caught:
        load_model(folder, device=torch.device("cpu"), dtype="float32")
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def folder(tiny: Get, tmp_path: Path) -> Path:
    return Path(copytree(tiny("qwen3_moe").folder, tmp_path / "model"))


def without(folder: Path, *parts: str) -> None:
    """Take weights out of the folder."""
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not any(part in name for part in parts)}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


def test_a_missing_dense_weight_is_named(folder: Path) -> None:
    without(folder, "q_norm")
    assert "lacks 2 weights, such as model.layers.0.self_attn.q_norm.weight" in said(folder)


def test_missing_experts_are_refused(folder: Path) -> None:
    without(folder, "layers.1.mlp.experts")
    assert "has no weights for model.layers.1.mlp.experts" in said(folder)


def test_an_expert_without_a_matrix_is_refused(folder: Path) -> None:
    without(folder, "layers.1.mlp.experts.3.down_proj")
    assert "has down for 7 of 8 experts of one layer (model.layers.1.mlp.experts.0.down_proj" in said(folder)


def test_a_layer_without_one_kind_of_matrix_is_refused(folder: Path) -> None:
    without(folder, "down_proj")
    assert "MoE layer 0 lacks down" in said(folder)


def test_a_matrix_of_another_shape_is_refused(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if "experts" in name and "up_proj" in name)
    weights[name] = weights[name][:-1].contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert "does not fit the configuration" in said(folder)


def test_a_folder_without_a_configuration_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert "config.json is missing; --model must name a Hugging Face model folder or a GGUF file" in said(folder)


def test_an_unknown_quantisation_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "awq"}}))
    assert "is quantised with awq; bfloat16, float16 and MXFP4 can be served" in said(folder)


def test_a_dense_model_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    assert "is no mixture-of-experts model" in said(folder)


def test_progress_goes_from_nothing_to_all(folder: Path) -> None:
    seen: list[float] = []
    load_model(folder, device=torch.device("cpu"), dtype="float32", progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)


def test_experts_of_two_sizes_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from engines.ostinato import loading
    from engines.ostinato.expert_layout import ExpertLayout

    widths = iter([32, 32, 48])
    monkeypatch.setattr(loading, "layout_of", lambda *_args, **_more: ExpertLayout(64, next(widths), "float32"))
    assert "has experts of different sizes from layer to layer" in said(folder)
