"""Models from GGUF files, and MXFP4 from either format."""

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")
pytest.importorskip("gguf", reason="GGUF files need the extra `ostinato`")

import torch
from families import difference
from gguf_writing import ARCHITECTURES, write
from mxfp4_writing import as_mxfp4, dequantised
from tokenizers import Tokenizer

from engines.ostinato import gguf_header
from engines.ostinato.device_branch import unpack_mxfp4
from engines.ostinato.errors import SetupError
from engines.ostinato.loading import LoadedModel, load_model
from engines.ostinato.planner import model_shape
from engines.ostinato.vocabulary import Vocabulary, vocabulary_path
from engines.synthetic_moe import SyntheticMoe
from engines.synthetic_moe import write as write_synthetic
from workloads.sample_paths import TOKENIZER

Get = Callable[..., Any]


def load(path: Path, dtype: str = "float32") -> LoadedModel:
    return load_model(path, device=torch.device("cpu"), dtype=dtype)


def last_logits(engine: Any, ids: list[int]) -> torch.Tensor:
    """After a prompt, and after each of its last three tokens."""
    engine.experts.shares.path = "split"  # else measured rates say who computes what, and in which order it adds up
    engine.reset()
    return torch.stack([engine.logits(ids[:-3]), *(engine.logits([token]) for token in ids[-3:])])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_weights_give_the_same_bits_from_either_format(dtype: str, tmp_path: Path, opened: Get) -> None:
    spec = SyntheticMoe(
        layers=2, experts=6, experts_per_token=2, hidden=64, expert_width=32, head_dim=16, context=1024
    )
    folder, file = tmp_path / "model", tmp_path / "file" / "model.gguf"
    write_synthetic(spec, tokenizer=TOKENIZER, safetensors=folder, gguf=file)
    ids = [(7 * i * i + 3 * i) % 4000 for i in range(60)]
    for slots in (0, 6):
        one = opened(folder, slots=slots, dtype=dtype)
        other = opened(file, slots=slots, dtype=dtype)
        assert torch.equal(last_logits(one, ids), last_logits(other, ids))
    assert other.eos_ids == one.eos_ids
    text = "def f(x):\n    return 'ünï' + x  # 12345 !?\r\n"
    assert (
        other.encode(text)
        == one.encode(text)
        == Tokenizer.from_file(str(TOKENIZER / "tokenizer.json")).encode(text).ids
    )
    assert [other.token_bytes(i) for i in range(4096)] == [one.token_bytes(i) for i in range(4096)]


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_a_file_of_each_architecture_gives_the_plain_logits(
    family: str, tiny: Get, opened: Get, tmp_path: Path
) -> None:
    # What the architecture implies and transformers' default for the family doesn't.
    model = tiny(family, **({"norm_topk_prob": True} if family == "qwen3_moe" else {}))
    engine = opened(write(model, tmp_path / "model.gguf"), slots=8)
    got = last_logits(engine, model.ids)
    assert difference(got, model.wanted[-4:]) < 1e-5


@pytest.mark.parametrize("kind", ["BF16", "F16"])
def test_half_precision_experts_are_read_straight_into_the_store(kind: str, tiny: Get, tmp_path: Path) -> None:
    model = tiny("qwen3_moe")
    dtype = {"BF16": "bfloat16", "F16": "float16"}[kind]
    file = load(write(model, tmp_path / "model.gguf", kind), dtype)
    assert file.store.layout.dtype == dtype
    assert torch.equal(file.store.tensor, load(model.folder, dtype).store.tensor)


def test_mxfp4_experts_equal_transformers_dequantised_ones(tiny: Get, opened: Get, tmp_path: Path) -> None:
    model = tiny("gpt_oss")
    folder = as_mxfp4(model, tmp_path / "mxfp4")
    weights = dequantised(folder)
    store = load(folder).store
    part = {name: store.tensor[1, 5, at : at + size] for name, (at, size) in store.layout.parts.items()}
    both = weights["model.layers.1.mlp.experts.gate_up_proj"][5].mT
    for name, rows in (("gate", both[0::2]), ("up", both[1::2])):
        assert torch.equal(unpack_mxfp4(part[name], part[f"{name}_scales"], len(rows)), rows)
    down = weights["model.layers.1.mlp.experts.down_proj"][5].mT
    assert torch.equal(unpack_mxfp4(part["down"], part["down_scales"], len(down)), down)

    plain = model.plain()
    plain.load_state_dict(weights, strict=False)
    with torch.inference_mode():
        wanted = plain(torch.tensor([model.ids])).logits[0, -4:]
    on_device = last_logits(opened(folder, slots=16), model.ids)
    assert difference(on_device, wanted) < 1e-5
    on_cpu = last_logits(opened(folder, slots=0), model.ids)  # its kernels take bfloat16 activations
    assert 1e-5 < difference(on_cpu, wanted) < 2e-2


def test_mxfp4_from_gguf_is_the_same_as_from_safetensors(tiny: Get, opened: Get, tmp_path: Path) -> None:
    model = tiny("gpt_oss")
    folder = as_mxfp4(model, tmp_path / "mxfp4")
    file = write(model, tmp_path / "model.gguf", "MXFP4")
    assert torch.equal(load(file).store.tensor, load(folder).store.tensor)
    assert torch.equal(last_logits(opened(file, slots=8), model.ids), last_logits(opened(folder, slots=8), model.ids))


def test_quantised_dense_weights_are_dequantised(tiny: Get, opened: Get, tmp_path: Path) -> None:
    model = tiny("gpt_oss")
    engine = opened(write(model, tmp_path / "model.gguf", "F32", dense="Q8_0"), slots=16)
    assert 1e-5 < difference(last_logits(engine, model.ids)[-1], model.wanted[-1]) < 0.1


def test_what_cannot_be_served_is_said_in_one_line(tiny: Get, tmp_path: Path) -> None:
    model = tiny("qwen3_moe")
    with pytest.raises(SetupError, match=r"experts of type Q8_0; bfloat16, float16, float32 or MXFP4"):
        load(write(model, tmp_path / "q8.gguf", "Q8_0"))
    whole = write(model, tmp_path / "model.gguf")
    other = tmp_path / "other.gguf"
    other.write_bytes(whole.read_bytes().replace(b"qwen3moe", b"deepseek"))
    with pytest.raises(SetupError, match="model of the kind deepseek; of GGUF files qwen3moe"):
        load(other)
    short = tmp_path / "short.gguf"
    short.write_bytes(whole.read_bytes()[:-1000])
    with pytest.raises(SetupError, match=r"short\.gguf .*download the file again"):
        load(short)
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + struct.pack("<I", 3) + b"\xff" * 64)
    with pytest.raises(SetupError, match=r"damaged\.gguf has no readable GGUF header"):
        load(damaged)
    with pytest.raises(SetupError, match="can't be read: No such file"):
        load(tmp_path / "none.gguf")
    part = whole.rename(tmp_path / "model-00001-of-00002.gguf")
    with pytest.raises(SetupError, match=r"model-00002-of-00002\.gguf is missing; the model is cut in 2 parts"):
        load(part)


def test_a_file_cut_in_parts_is_one_model(tiny: Get, opened: Get, tmp_path: Path) -> None:
    model = tiny("qwen3_moe")
    whole, first = write(model, tmp_path / "whole.gguf"), write(model, tmp_path / "cut.gguf", most=9)
    assert len(list(tmp_path.glob("cut-*.gguf"))) > 2
    assert model_shape.read(first) == model_shape.read(whole)
    one, other = (opened(file, slots=16) for file in (whole, first))
    assert torch.equal(last_logits(one, model.ids), last_logits(other, model.ids))


def test_a_header_is_kept_until_its_file_changes(tiny: Get, tmp_path: Path) -> None:
    file = write(tiny("qwen3_moe"), tmp_path / "model.gguf")
    header = gguf_header.read(file)
    assert gguf_header.read(file) is header
    assert header.fields["general.architecture"] == "qwen3moe"
    write(tiny("gpt_oss"), file)
    assert gguf_header.read(file).fields["general.architecture"] == "gpt-oss"


def test_a_vocabulary_that_is_not_known_needs_a_tokenizer_beside_the_file(tiny: Get, tmp_path: Path) -> None:
    file = write(tiny("olmoe"), tmp_path / "model.gguf")
    file.write_bytes(file.read_bytes().replace(b"gpt-2", b"dbrx?"))
    with pytest.raises(
        SetupError, match=r"vocabulary of the kind gpt2/dbrx\?; put the model's tokenizer\.json beside"
    ):
        Vocabulary(vocabulary_path(file))
    shutil.copyfile(TOKENIZER / "tokenizer.json", tmp_path / "tokenizer.json")
    assert Vocabulary(vocabulary_path(file)).encode("hello")
