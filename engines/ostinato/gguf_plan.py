"""Which tensors of a GGUF file make which parameter, and how its experts come into the store.

The gguf package maps names; what llama.cpp changes beyond names when it writes a file is undone here.
"""

import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from engines.ostinato.errors import SetupError
from engines.ostinato.gguf_file import MXFP4_BLOCK, PLAIN, GgufCheckpoint, split_mxfp4
from engines.ostinato.packing import TORCH
from engines.ostinato.store import ExpertStore

# Shapes: E = experts, D = hidden size, I = inner width.

_MATRICES = ("gate", "up", "down")


class GgufPlan:
    """The parameters of ``model`` in ``checkpoint``."""

    def __init__(self, model: PreTrainedModel, checkpoint: GgufCheckpoint) -> None:
        from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

        self._model, self._checkpoint = model, checkpoint
        architecture = checkpoint.metadata["general.architecture"]
        self._rotated = architecture == "llama"
        kind = next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == architecture)
        self._names = get_tensor_name_map(kind, model.config.num_hidden_layers)
        kinds = {checkpoint.kinds[name] for name in checkpoint if re.search(r"_exps\.weight$", name)}
        if len(kinds) > 1 or not kinds <= {*PLAIN, "MXFP4"}:
            raise SetupError(
                f"{checkpoint.folder} holds experts of type {' and '.join(sorted(kinds))}; bfloat16, float16, "
                "float32 or MXFP4 for all of them can be served"
            )
        self.mxfp4 = kinds == {"MXFP4"}

    def dense(self, experts: Mapping[str, nn.Module]) -> Iterator[str]:
        """What the file has for anything but the experts, by the model's names."""
        for target in self._model.state_dict():
            if self._named(target) and not any(target.startswith(f"{prefix}.") for prefix in experts):
                yield target

    def read(self, target: str) -> dict[str, Tensor]:
        """The finished parameter by its name."""
        name = self._named(target)
        assert name is not None
        tensor = self._checkpoint.tensor(name)
        if self._rotated and (found := re.search(r"attn_([qk])\.weight$", name)):
            config = self._model.config
            heads = config.num_attention_heads if found[1] == "q" else config.num_key_value_heads
            tensor = _unrotated(tensor, heads)
        return {target: tensor}

    def nbytes(self, target: str) -> int:
        """What it takes in the file."""
        name = self._named(target)
        return 0 if name is None else self._checkpoint[name].nbytes

    def fill(self, store: ExpertStore, layer: int, prefix: str, module: nn.Module) -> int:  # noqa: ARG002
        """Bring one layer's experts into the store; return the bytes read."""
        layout, experts = store.layout, store.experts
        found = re.search(r"\.(\d+)\.", prefix)
        assert found is not None
        sizes = {"gate": (layout.width, layout.hidden), "up": (layout.width, layout.hidden)}
        sizes["down"] = (layout.hidden, layout.width)
        names = {matrix: f"blk.{found[1]}.ffn_{matrix}_exps" for matrix in _MATRICES}
        shapes: dict[str, tuple[int, ...]] = {
            f"{names[matrix]}.weight": (experts, *sizes[matrix]) for matrix in _MATRICES
        }
        if layout.bias:
            shapes |= {f"{names[matrix]}.bias": (experts, sizes[matrix][0]) for matrix in _MATRICES}
        for name, shape in shapes.items():
            entry = self._checkpoint.get(name)
            if entry is None:
                raise SetupError(f"{self._checkpoint.folder} lacks {name}; download the model again")
            if entry.shape != shape:
                raise SetupError(f"{entry.path}: {name} has shape {entry.shape}, which does not fit the header")
        if layout.bias:
            for matrix in _MATRICES:
                bias = self._checkpoint.tensor(f"{names[matrix]}.bias").float()
                for expert in range(experts):
                    store.part(layer, expert, f"{matrix}_bias")[:] = bias[expert].view(torch.uint8).numpy()

        def read(job: tuple[str, int]) -> None:
            matrix, expert = job
            self._matrix(store, layer, expert, matrix, f"{names[matrix]}.weight")

        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
            list(pool.map(read, product(_MATRICES, range(experts))))
        return sum(self._checkpoint[name].nbytes for name in shapes)

    def _matrix(self, store: ExpertStore, layer: int, expert: int, matrix: str, name: str) -> None:
        """One matrix of one expert, straight to its place where its bytes are as they are stored."""
        checkpoint = self._checkpoint
        entry, target = checkpoint[name], store.part(layer, expert, matrix)
        size = entry.nbytes // store.experts
        if TORCH.get(store.layout.dtype) == entry.dtype:
            checkpoint.read_into(name, target, start=expert * size)
            return
        content = np.empty(size, np.uint8)
        checkpoint.read_into(name, content, start=expert * size)
        if self.mxfp4:
            values, scales = split_mxfp4(content.reshape(-1, MXFP4_BLOCK))
            target[:] = values.reshape(-1)
            store.part(layer, expert, f"{matrix}_scales")[:] = scales
        else:
            wanted = torch.from_numpy(content).view(entry.dtype).to(TORCH[store.layout.dtype])
            target[:] = wanted.view(torch.uint8).numpy()

    def _named(self, target: str) -> str | None:
        """The tensor of a parameter, where the file has one."""
        name = self._names.get_name(target, try_suffixes=(".weight", ".bias"))
        candidates = () if name is None else (name, f"{name}.weight", f"{name}.bias")
        return next((candidate for candidate in candidates if candidate in self._checkpoint), None)


def _unrotated(weight: Tensor, heads: int) -> Tensor:
    """Rows as transformers has them: of each head first all even halves of a rotary pair, then all odd ones.

    llama.cpp stores the pairs of the architecture ``llama`` side by side.
    """
    pairs = weight.view(heads, -1, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)
