"""A GGUF file, or one cut in parts, as an index of byte ranges and what its header says."""

import re
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engines.ostinato.checkpoint import Checkpoint, Entry
from engines.ostinato.errors import SetupError

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
MXFP4_BLOCK = 17
"""Bytes of 32 values: their scale, then 16 bytes of two, the first 16 values in the lower halves."""
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


class GgufCheckpoint(Checkpoint):
    """The tensors by their names in the file; shapes as PyTorch has them, rows first.

    Raises:
        SetupError: a damaged, short or missing file.
    """

    def __init__(self, path: Path) -> None:
        self.folder = path
        self.metadata: dict[str, Any] = {}
        """The header's fields; of a text array (the vocabulary) a list."""
        self.kinds: dict[str, str] = {}
        """Tensor → its type's name in the format, such as BF16 or MXFP4."""
        self._entries: dict[str, Entry] = {}
        self._files: dict[Path, int] = {}
        for part in _parts(path):
            self._read_header(part)

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

    def _read_header(self, path: Path) -> None:
        from gguf import GGUFReader  # slow to import, and only needed for these files

        try:
            reader = GGUFReader(path)
        except OSError as error:
            raise SetupError(f"{path} can't be read: {error.strerror}") from error
        except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
            raise SetupError(f"{path} has no readable GGUF header: {error}; download the file again") from error
        size = path.stat().st_size
        for name, field in reader.fields.items():
            self.metadata.setdefault(name, field.contents())
        for item in reader.tensors:
            kind = item.tensor_type.name
            shape = tuple(int(n) for n in reversed(item.shape))
            offset, nbytes = int(item.data_offset), int(item.n_bytes)
            dtype = PLAIN.get(kind, torch.uint8)
            if offset + nbytes > size or (kind in PLAIN and nbytes != prod(shape) * dtype.itemsize):
                raise SetupError(f"{path} is cut short or damaged at {item.name}; download the file again")
            self._entries[item.name] = Entry(path, offset, nbytes, dtype, shape)
            self.kinds[item.name] = kind


def _parts(path: Path) -> list[Path]:
    found = _PART.search(path.name)
    if found is None:
        return [path]
    stem, count = path.name[: found.start()], int(found[2])
    parts = [path.with_name(f"{stem}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    for part in parts:
        if not part.is_file():
            raise SetupError(f"{part} is missing; the model is cut in {count} parts: download it too")
    return parts


def split_mxfp4(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Blocks uint8 ``[n, 17]`` → (values ``[n, 16]``, scales ``[n]``) as in an expert: neighbours share a byte."""
    packed = blocks[:, 1:]
    codes = np.concatenate([packed & 15, packed >> 4], 1)
    return codes[:, 0::2] | codes[:, 1::2] << 4, blocks[:, 0]
