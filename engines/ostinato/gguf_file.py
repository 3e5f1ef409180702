"""A GGUF file, or one cut in parts, as an index of byte ranges and what its header says."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engines.ostinato import gguf_header
from engines.ostinato.checkpoint import Checkpoint, Entry
from engines.ostinato.errors import SetupError

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
MXFP4_BLOCK = 17
"""Bytes of 32 values: their scale, then 16 bytes of two, the first 16 values in the lower halves."""


class GgufCheckpoint(Checkpoint):
    """The tensors by their names in the file; shapes as PyTorch has them, rows first.

    Raises:
        SetupError: a damaged, short or missing file.
    """

    def __init__(self, path: Path) -> None:
        self.folder = path
        header = gguf_header.read(path)
        self.metadata: Mapping[str, Any] = header.fields
        """The header's fields; of a text array (the vocabulary) a list."""
        self.kinds = {name: tensor.kind for name, tensor in header.tensors.items()}
        """Tensor → its type's name in the format, such as BF16 or MXFP4."""
        self._entries = {
            name: Entry(tensor.path, tensor.offset, tensor.nbytes, PLAIN.get(tensor.kind, torch.uint8), tensor.shape)
            for name, tensor in header.tensors.items()
        }
        self._files: dict[Path, int] = {}

    def tensor(self, name: str) -> Tensor:
        """A tensor of its own; quantised ones in float32."""
        if self.kinds[name] in PLAIN:
            return super().tensor(name)
        from gguf import GGMLQuantizationType, quants

        entry = self[name]
        content = np.empty(entry.nbytes, np.uint8)
        self.read_into(name, content)
        kind = GGMLQuantizationType[self.kinds[name]]
        try:
            values = quants.dequantize(content, kind)
        except NotImplementedError as error:
            raise SetupError(f"{entry.path}: {name} has type {kind.name}, which can't be read") from error
        return torch.from_numpy(values).reshape(entry.shape)


def split_mxfp4(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Blocks uint8 ``[n, 17]`` → (values ``[n, 16]``, scales ``[n]``) as in an expert: neighbours share a byte."""
    packed = blocks[:, 1:]
    codes = np.concatenate([packed & 15, packed >> 4], 1)
    return codes[:, 0::2] | codes[:, 1::2] << 4, blocks[:, 0]
