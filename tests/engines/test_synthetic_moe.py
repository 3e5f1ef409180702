"""Synthetic models: both formats hold the same weights, readers accept them, and nothing half-written appears."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engines.base import EngineError
from engines.synthetic_draw import BLOCK, Weight, draw, to_bf16, to_float32
from engines.synthetic_moe import SyntheticMoe, weights_of, write

SMALL = {
    "layers": 2,
    "experts": 6,
    "experts_per_token": 2,
    "hidden": 64,
    "expert_width": 32,
    "heads": 4,
    "kv_heads": 2,
}


def small(**changes: float) -> SyntheticMoe:
    return SyntheticMoe(**SMALL | {"head_dim": 16, "vocab_size": 700} | changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE of 600 ids: two special ones, one that is only added."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

    folder = tmp_path_factory.mktemp("tokenizer")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|pad|>", "<|end|>"],
        show_progress=False,
    )
    bpe.train_from_iterator(["the model replays the recorded session turn by turn"] * 20, trainer)
    bpe.add_tokens([AddedToken("<tool>", special=False)])
    bpe.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|end|>", "pad_token": {"content": "<|pad|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> tuple[Path, Path]:
    """The small model in both formats."""
    folder = tmp_path_factory.mktemp("model")
    write(small(), tokenizer=tokenizer, safetensors=folder / "small", gguf=folder / "small.gguf")
    return folder / "small", folder / "small.gguf"


def bf16_of(folder: Path) -> dict[str, NDArray[np.uint16]]:
    """Every tensor of a model folder, as bit patterns, read by the safetensors library."""
    import torch
    from safetensors import safe_open

    tensors = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                tensors[name] = file.get_tensor(name).view(torch.uint16).numpy()
    return tensors


def gguf_values(path: Path) -> dict[str, NDArray[np.float32]]:
    from gguf import GGMLQuantizationType, GGUFReader

    values = {}
    for tensor in GGUFReader(path).tensors:
        data = np.asarray(tensor.data)
        wide = tensor.tensor_type == GGMLQuantizationType.F32
        flat = data.view(np.float32).ravel() if wide else to_float32(data.view(np.uint16).ravel())
        values[tensor.name] = flat.reshape([int(n) for n in tensor.shape[::-1]])
    return values


def test_both_formats_hold_the_same_weights(model: tuple[Path, Path]) -> None:
    ours = {name: to_float32(bits) for name, bits in bf16_of(model[0]).items()}
    theirs = gguf_values(model[1])

    seen = 0
    for weight in weights_of(small()):
        stack = theirs[weight.gguf_name]
        value = stack[weight.gguf_part] if "_exps" in weight.gguf_name else stack
        np.testing.assert_array_equal(ours[weight.name].reshape(weight.shape), value, err_msg=weight.name)
        seen += weight.size
    assert seen == sum(tensor.size for tensor in theirs.values()) == sum(tensor.size for tensor in ours.values())


def test_transformers_loads_every_weight_and_gives_finite_logits(model: tuple[Path, Path]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    loaded, info = loader.from_pretrained(model[0], output_loading_info=True, dtype=torch.float32)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with torch.inference_mode():
        logits = loaded(torch.arange(50)[None]).logits
    assert logits.shape == (1, 50, 700)
    assert 0.5 < float(logits.std()) < 3


def test_the_gguf_file_embeds_shape_and_tokenizer(model: tuple[Path, Path]) -> None:
    from gguf import GGUFReader, TokenType

    fields = {name: field.contents() for name, field in GGUFReader(model[1]).fields.items()}
    assert fields["general.architecture"] == "qwen3moe"
    assert fields["qwen3moe.expert_used_count"] == 2
    assert fields["qwen3moe.attention.key_length"] == 16
    assert fields["tokenizer.ggml.model"] == "gpt2"
    assert fields["tokenizer.ggml.eos_token_id"] == 1
    assert fields["tokenizer.ggml.padding_token_id"] == 0
    assert fields["tokenizer.ggml.add_bos_token"] is False
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    assert len(tokens) == len(kinds) == 700
    assert (tokens[1], kinds[1]) == ("<|end|>", TokenType.CONTROL)
    assert kinds[tokens.index("<tool>")] == TokenType.USER_DEFINED
    assert kinds[tokens.index("Ġ")] == TokenType.NORMAL
    assert (tokens[699], kinds[699]) == ("[PAD699]", TokenType.UNUSED)
    assert all(len(merge.split(" ")) == 2 for merge in fields["tokenizer.ggml.merges"])


def test_the_folder_carries_tokenizer_and_end_token(model: tuple[Path, Path], tokenizer: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (model[0] / name).read_bytes() == (tokenizer / name).read_bytes()
    generation = json.loads((model[0] / "generation_config.json").read_text())
    assert generation == {"eos_token_id": 1, "pad_token_id": 0, "do_sample": False}


def test_a_large_model_is_sharded_with_an_index(tmp_path: Path, tokenizer: Path, model: tuple[Path, Path]) -> None:
    write(small(), tokenizer=tokenizer, safetensors=tmp_path / "sharded", gguf=None, shard_bytes=100_000)

    index = json.loads((tmp_path / "sharded/model.safetensors.index.json").read_text())
    whole, sharded = bf16_of(model[0]), bf16_of(tmp_path / "sharded")
    assert len(set(index["weight_map"].values())) > 2
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in whole.values())
    assert set(index["weight_map"]) == set(sharded) == set(whole)
    for name, bits in whole.items():
        np.testing.assert_array_equal(bits, sharded[name])


def test_one_seed_gives_one_model_and_another_seed_another(
    tmp_path: Path, tokenizer: Path, model: tuple[Path, Path]
) -> None:
    write(small(), tokenizer=tokenizer, safetensors=None, gguf=tmp_path / "again.gguf")
    write(small(seed=1), tokenizer=tokenizer, safetensors=None, gguf=tmp_path / "other.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == model[1].read_bytes()
    assert (tmp_path / "other.gguf").read_bytes() != model[1].read_bytes()


def test_a_block_is_the_same_whatever_was_drawn_before() -> None:
    weight = Weight(name="w", shape=(3, BLOCK // 2 + 7), scale=1.0, row_spread=0.2, gguf_name="w")
    forwards = [draw(weight, start, 0) for start in weight.blocks]
    backwards = [draw(weight, start, 0) for start in reversed(weight.blocks)][::-1]
    assert [len(block) for block in forwards] == [BLOCK, BLOCK // 2 + 21]
    for a, b in zip(forwards, backwards, strict=True):
        np.testing.assert_array_equal(a, b)


def test_draws_are_normal_with_the_scale_asked_for() -> None:
    values = to_float32(draw(Weight(name="w", shape=(1000, 1000), scale=0.3, gguf_name="w"), 0, 0))
    assert values.mean() == pytest.approx(0, abs=0.001)
    assert values.std() == pytest.approx(0.3, rel=0.005)
    assert np.mean(np.abs(values) < 0.3) == pytest.approx(0.6827, abs=0.003)
    norms = to_float32(draw(Weight(name="n", shape=(10_000,), scale=0.1, mean=1.0, gguf_name="n"), 0, 0))
    assert norms.mean() == pytest.approx(1.0, abs=0.005)


def test_bfloat16_rounds_to_nearest_and_ties_to_even() -> None:
    import torch

    bits = np.random.default_rng(0).integers(0, 1 << 32, 20_000, dtype=np.uint32)
    ties = np.array([0x3F808000, 0x3F818000, 0xBF808000, 0x3F808001, 0x3F807FFF], np.uint32)
    x = np.concatenate([bits, ties]).view(np.float32)
    x = x[np.isfinite(x)]
    expected = torch.from_numpy(x).bfloat16().view(torch.uint16).numpy()
    np.testing.assert_array_equal(to_bf16(x), expected)


@pytest.mark.parametrize(("spread", "low", "high"), [(0.45, 0.83, 0.89), (0.0, 0.44, 0.56)])
def test_router_spread_decides_how_unevenly_experts_are_used(spread: float, low: float, high: float) -> None:
    """0.45 sends 84 to 88 % of the routes to the most used 44 % of 128 experts; the mean of 8 layers."""
    spec = SyntheticMoe(layers=8, experts=128, experts_per_token=8, router_spread=spread)
    rng = np.random.default_rng(0)
    shares = []
    for weight in weights_of(spec):
        if weight.name.endswith("mlp.gate.weight"):
            router = to_float32(draw(weight, 0, 0)).reshape(weight.shape)
            logits = rng.standard_normal((2000, spec.hidden)) @ router.T
            chosen = np.argpartition(-logits, 8, axis=1)[:, :8]
            hits = np.sort(np.bincount(chosen.ravel(), minlength=128))[::-1]
            shares.append(hits[: round(0.44 * 128)].sum() / hits.sum())
    assert low < np.mean(shares) < high


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 4, "kv_heads": 3}, "heads 4 is no multiple of kv_heads 3"),
        ({"experts": 2, "experts_per_token": 4}, "experts_per_token 4 exceeds experts 2"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"layers": 0}, "layers must be positive, not 0"),
        ({"seed": -1}, "seed and router_spread must be 0 or more"),
        ({"vocab_size": 100}, "vocab_size 100 is too small for .*; set it to at least"),
    ],
)
def test_a_shape_that_cannot_be_names_its_field(
    tmp_path: Path, tokenizer: Path, changes: dict[str, int], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        write(small(**changes), tokenizer=tokenizer, safetensors=tmp_path / "model", gguf=None)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_or_broken_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"tokenizer\.json is missing; set the model's tokenizer"):
        write(small(), tokenizer=tmp_path, safetensors=tmp_path / "model", gguf=None)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(EngineError, match=r"tokenizer\.json is not valid JSON"):
        write(small(), tokenizer=tmp_path, safetensors=tmp_path / "model", gguf=None)


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis/chapter.txt").write_text("years of work")
    with pytest.raises(EngineError, match="holds something other than a synthetic model"):
        write(small(), tokenizer=tokenizer, safetensors=tmp_path / "thesis", gguf=None)
    assert (tmp_path / "thesis/chapter.txt").read_text() == "years of work"


def test_an_interrupted_write_leaves_nothing_behind(tmp_path: Path, tokenizer: Path) -> None:
    def interrupt(share: float) -> None:
        assert not (tmp_path / "model").exists()
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(
            small(), tokenizer=tokenizer, safetensors=tmp_path / "model", gguf=tmp_path / "m.gguf", progress=interrupt
        )
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_model_is_replaced_and_progress_ends_at_one(tmp_path: Path, tokenizer: Path) -> None:
    shares: list[float] = []
    write(small(), tokenizer=tokenizer, safetensors=tmp_path / "model", gguf=None)
    write(small(seed=5), tokenizer=tokenizer, safetensors=tmp_path / "model", gguf=None, progress=shares.append)
    assert json.loads((tmp_path / "model/config.json").read_text())["synthetic_moe"]["seed"] == 5
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
