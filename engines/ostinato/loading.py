"""A transformers model whose dense weights lie on a device and whose experts lie in an ``ExpertStore``.

The experts never pass through a parameter, so that memory holds them once.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from engines.ostinato.checkpoint import Checkpoint
from engines.ostinato.errors import SetupError
from engines.ostinato.gguf_config import config_of
from engines.ostinato.gguf_file import GgufCheckpoint
from engines.ostinato.gguf_plan import GgufPlan
from engines.ostinato.packing import layout_of
from engines.ostinato.safetensors_plan import SafetensorsPlan
from engines.ostinato.store import ExpertStore


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What the engine computes with."""

    model: PreTrainedModel
    experts: tuple[nn.Module, ...]
    """The MoE layers' experts modules, in order; their parameters stay on ``meta``."""
    store: ExpertStore


class Plan(Protocol):
    """Which stored tensors make which parameter."""

    def dense(self, experts: Mapping[str, nn.Module]) -> Iterator[str]:
        """What is stored for anything but the experts, by the model's names."""

    def read(self, target: str) -> dict[str, Tensor]:
        """The finished parameters that its stored tensors make, by name."""

    def nbytes(self, target: str) -> int:
        """What it takes in the files."""

    def fill(self, store: ExpertStore, layer: int, prefix: str, module: nn.Module) -> int:
        """Bring one layer's experts into the store; return the bytes read."""


def load_model(
    folder: Path, *, device: torch.device, dtype: str, progress: Callable[[float], None] = lambda _share: None
) -> LoadedModel:
    """Load a model folder, or a GGUF file.

    Args:
        folder: either.
        dtype: ``auto`` takes the model's own on a GPU, float32 on a CPU.
        progress: called with the share of bytes read.

    Raises:
        SetupError: no model folder, weights missing or of an unknown kind, too little memory.
    """
    checkpoint: Checkpoint
    plan: Plan
    if folder.suffix == ".gguf":
        file = GgufCheckpoint(folder)
        checkpoint, config = file, config_of(file)
        model = skeleton(config, folder, dtype=dtype, device=device)
        found = GgufPlan(model, file)
        plan, quantized = found, found.mxfp4
    else:
        config = read_config(folder)
        model = skeleton(config, folder, dtype=dtype, device=device)
        checkpoint = Checkpoint(folder)
        plan = SafetensorsPlan(model, checkpoint)
        quantized = getattr(config, "quantization_config", None) is not None
    experts = {name: module for name, module in model.named_modules() if hasattr(module, "is_transposed")}
    if not experts:
        raise SetupError(
            f"{folder} is no mixture-of-experts model that transformers can dispatch; use --placement none"
        )
    if quantized and device.type == "cuda" and model.dtype != torch.bfloat16:
        raise SetupError(f"{folder} has MXFP4 experts, which a GPU computes in bfloat16; leave --dtype out")
    first = next(iter(experts.values()))
    layout = layout_of(first, model.dtype, quantized=quantized)
    if any(layout_of(module, model.dtype, quantized=quantized) != layout for module in experts.values()):
        raise SetupError(f"{folder} has experts of different sizes from layer to layer, which can't be served yet")
    store = ExpertStore(layout, layers=len(experts), experts=first.num_experts)
    with checkpoint.open():
        done, total = 0, sum(entry.nbytes for entry in checkpoint.values())
        for target in plan.dense(experts):
            for name, tensor in plan.read(target).items():
                _assign(model, name, tensor, device)
            done += plan.nbytes(target)
            progress(done / total)
        for layer, prefix in enumerate(experts):
            done += plan.fill(store, layer, prefix, experts[prefix])
            progress(done / total)
    model.tie_weights()
    for name, buffer in list(model.named_buffers()):
        _put(model, name, buffer.to(device))
    _refuse_missing(model, experts, folder)
    return LoadedModel(model.eval(), tuple(experts.values()), store)


def read_config(folder: Path) -> PretrainedConfig:
    """A model folder's configuration."""
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise SetupError(
                f"{folder / name} is missing; --model must name a Hugging Face model folder or a GGUF file"
            )
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise SetupError(f"{folder} can't be loaded: {str(error).splitlines()[0]}") from error
    quantization = getattr(config, "quantization_config", None)
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        if method != "mxfp4":
            raise SetupError(f"{folder} is quantised with {method}; bfloat16, float16 and MXFP4 can be served")
    return config


def skeleton(config: PretrainedConfig, source: Path, *, dtype: str, device: torch.device) -> PreTrainedModel:
    """The model without weights: parameters on ``meta``, buffers real."""
    if dtype == "auto":
        own = getattr(config, "dtype", None) or torch.float32
        kind = own if device.type == "cuda" else torch.float32
    else:
        kind = getattr(torch, dtype)
    try:
        with _parameters_on_meta():
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=kind)
    except (OSError, ValueError, KeyError) as error:
        raise SetupError(f"{source} can't be loaded: {str(error).splitlines()[0]}") from error
    return model


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    register = nn.Module.register_parameter

    def on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None:
            self._parameters[name] = nn.Parameter(param.to("meta"), requires_grad=False)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _assign(model: nn.Module, name: str, tensor: Tensor, device: torch.device) -> None:
    """Put one dense parameter or buffer on the device, in the precision that the model keeps it in."""
    place = _find(model, name)
    if tensor.is_floating_point() and place is not None and place.is_floating_point():
        tensor = tensor.to(place.dtype)
    _put(model, name, tensor.to(device))


def _find(model: nn.Module, name: str) -> Tensor | None:
    owner, _, leaf = name.rpartition(".")
    try:
        value = getattr(model.get_submodule(owner), leaf, None)
    except AttributeError:
        return None
    return value if isinstance(value, Tensor) else None


def _put(model: nn.Module, name: str, tensor: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    try:
        module = model.get_submodule(owner)
    except AttributeError:
        return  # an extra of the checkpoint, such as a draft layer
    if leaf in module._parameters:  # noqa: SLF001 - the one way to replace a parameter on meta
        module._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)  # noqa: SLF001
    elif leaf in module._buffers:  # noqa: SLF001
        module._buffers[leaf] = tensor  # noqa: SLF001


def _refuse_missing(model: nn.Module, experts: Mapping[str, nn.Module], folder: Path) -> None:
    missing = [
        name
        for name, parameter in model.named_parameters()
        if parameter.is_meta and not any(name.startswith(f"{prefix}.") for prefix in experts)
    ]
    if missing:
        raise SetupError(f"{folder} lacks {len(missing)} weights, such as {min(missing)}")
