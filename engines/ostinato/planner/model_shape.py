"""What a plan needs of a model: sizes, read from its files' headers without loading a weight."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.ostinato import gguf_header
from engines.ostinato.errors import SetupError

_EXPERT = re.compile(r"\.experts\.|_exps\.")
_LAYER = re.compile(r"(?:layers|blk)\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Bytes are those in the files."""

    model_hash: str
    layers: int
    """All of them; what follows counts MoE layers where it says so."""
    moe_layers: tuple[int, ...]
    """The layers with experts, by their number in the model."""
    experts: int
    experts_per_token: int
    hidden: int
    expert_bytes: tuple[int, ...]
    """One expert of each MoE layer."""
    dense_bytes: tuple[int, ...]
    """The rest of every layer."""
    other_bytes: int
    """Embeddings, output head, final norm."""
    kv_bytes_per_token: tuple[int, ...]
    """Keys and values of every layer at 16 bits."""


def read(path: Path) -> ModelShape:
    """From a Hugging Face folder (config.json, safetensors) or a GGUF file.

    Raises:
        SetupError: neither, or a model without experts.
    """
    if path.is_dir():
        return _from_folder(path)
    if path.suffix == ".gguf" and path.is_file():
        return _from_gguf(path)
    raise SetupError(f"{path} is no model folder and no GGUF file; set --model")


def _from_folder(folder: Path) -> ModelShape:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise SetupError(f"{folder}/config.json can't be read: {error.strerror}; name a model folder") from error
    except ValueError as error:
        raise SetupError(f"{folder}/config.json is damaged: {error}; download it again") from error
    config |= config.get("text_config", {})
    tensors = dict(_safetensors(folder))
    number = _first(config, "num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
    chosen = _first(config, "num_experts_per_tok", "moe_topk", "num_experts_per_token")
    if number is None or chosen is None:
        raise SetupError(f"{folder}/config.json names no experts; Ostinato plans mixture-of-experts models only")
    return _shape(
        tensors,
        experts=number,
        experts_per_token=chosen,
        hidden=config["hidden_size"],
        kv_bytes=_kv_bytes(config),
        layers=config["num_hidden_layers"],
    )


def _from_gguf(file: Path) -> ModelShape:
    header = gguf_header.read(file)
    architecture = header.fields.get("general.architecture", "")

    def number(name: str) -> int | None:
        found = header.fields.get(f"{architecture}.{name}")
        return None if found is None else int(found)

    experts, chosen = number("expert_count"), number("expert_used_count")
    heads = number("attention.head_count")
    hidden, layers = number("embedding_length"), number("block_count")
    if not experts or not chosen or not hidden or not layers or not heads:
        raise SetupError(f"{file} holds no mixture-of-experts model; Ostinato plans those only")
    head = hidden // heads
    keys, values = number("attention.key_length") or head, number("attention.value_length") or head
    return _shape(
        {name: tensor.nbytes for name, tensor in header.tensors.items()},
        experts=experts,
        experts_per_token=chosen,
        hidden=hidden,
        kv_bytes=2 * (number("attention.head_count_kv") or heads) * (keys + values),
        layers=layers,
    )


def _shape(
    tensors: Mapping[str, int], *, experts: int, experts_per_token: int, hidden: int, kv_bytes: int, layers: int
) -> ModelShape:
    routed, dense, other = [0] * layers, [0] * layers, 0
    for name, size in tensors.items():
        found = _LAYER.search(name)
        if found is None or int(found[1]) >= layers:  # layers beyond the last predict more tokens; not served
            other += size if found is None else 0
        elif _EXPERT.search(name):
            routed[int(found[1])] += size
        else:
            dense[int(found[1])] += size
    moe = tuple(layer for layer in range(layers) if routed[layer])
    if not moe:
        raise SetupError("the model's files hold no expert weights; Ostinato plans mixture-of-experts models only")
    return ModelShape(
        model_hash=digest(tensors),
        layers=layers,
        moe_layers=moe,
        experts=experts,
        experts_per_token=experts_per_token,
        hidden=hidden,
        expert_bytes=tuple(routed[layer] // experts for layer in moe),
        dense_bytes=tuple(dense),
        other_bytes=other,
        kv_bytes_per_token=(kv_bytes,) * layers,
    )


def digest(tensors: Mapping[str, int]) -> str:
    """Names a model by its tensors' names and sizes: routes recorded with one can't be used for another shape."""
    text = json.dumps(sorted(tensors.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _safetensors(folder: Path) -> Iterator[tuple[str, int]]:
    """Name and bytes of every tensor."""
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            try:
                header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            except (ValueError, OverflowError, MemoryError) as error:
                raise SetupError(f"{path} has no readable header; download the file again") from error
        for name, item in header.items():
            if name != "__metadata__":
                start, end = item["data_offsets"]
                yield name, end - start


def _kv_bytes(config: Mapping[str, Any]) -> int:
    """Of one layer and token at 16 bits. Models with latent attention are cached decompressed, head by head."""
    heads = config["num_attention_heads"]
    if "qk_nope_head_dim" in config:
        keys = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
        return int(2 * heads * (keys + config.get("v_head_dim", keys)))
    head = config.get("head_dim") or config["hidden_size"] // heads
    return int(4 * (config.get("num_key_value_heads") or heads) * head)


def _first(config: Mapping[str, Any], *names: str) -> int | None:
    return next((int(config[name]) for name in names if config.get(name)), None)
