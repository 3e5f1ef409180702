"""A safetensors model folder as an index of byte ranges: what is where, read without a second copy."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engines.ostinato.errors import SetupError

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_INDEX = "model.safetensors.index.json"
_READ_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored tensor."""

    path: Path
    offset: int
    """Of its first byte in the file."""
    nbytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class Checkpoint(Mapping[str, Entry]):
    """The tensors of a model folder by name.

    Raises:
        SetupError: no safetensors there, a damaged or missing shard.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries: dict[str, Entry] = {}
        for path in _shards(folder):
            self._entries |= _entries(path)
        self._files: dict[Path, int] = {}

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @contextmanager
    def open(self) -> Iterator["Checkpoint"]:
        """Keep the files open: reading is possible inside."""
        try:
            for entry in self._entries.values():
                if entry.path not in self._files:
                    self._files[entry.path] = os.open(entry.path, os.O_RDONLY)
            yield self
        finally:
            for file in self._files.values():
                os.close(file)
            self._files.clear()

    def read_into(self, name: str, target: np.ndarray, *, start: int = 0) -> None:
        """Fill a writable uint8 array with the tensor's bytes from byte ``start`` on.

        Raises:
            SetupError: the file is shorter than its header says, or can't be read.
        """
        entry = self._entries[name]
        assert start + target.nbytes <= entry.nbytes
        view = target.data.cast("B")
        offset = entry.offset + start
        while view:
            try:
                count = os.preadv(self._files[entry.path], [view[:_READ_BYTES]], offset)
            except OSError as error:
                raise SetupError(f"{entry.path} can't be read: {error.strerror}") from error
            if not count:
                raise SetupError(f"{entry.path} ends within {name}; download the file again")
            view, offset = view[count:], offset + count

    def tensor(self, name: str) -> Tensor:
        """A tensor of its own."""
        entry = self._entries[name]
        tensor = torch.empty(entry.shape, dtype=entry.dtype)
        if entry.nbytes:
            self.read_into(name, tensor.view(-1).view(torch.uint8).numpy())
        return tensor


def _shards(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise SetupError(f"{index} is damaged: {error!r}; download it again") from error
        paths = [folder / name for name in sorted(names)]
    else:
        paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise SetupError(f"{folder} holds no *.safetensors; --model must name a model folder in that format")
    for path in paths:
        if not path.is_file():
            raise SetupError(f"{path} is missing; {_INDEX} names it: download it too")
    return paths


def _entries(path: Path) -> dict[str, Entry]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > size - 8:
            raise SetupError(f"{path} is cut short: its header claims {length} bytes; download the file again")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise SetupError(f"{path} has no readable header: {error}; download the file again") from error
    try:
        return {
            name: _entry(path, name, item, 8 + length, size)
            for name, item in header.items()
            if name != "__metadata__"
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SetupError(f"{path} has a damaged header: {error!r}; download the file again") from error


def _entry(path: Path, name: str, item: dict[str, Any], base: int, size: int) -> Entry:
    """Raises: AttributeError, KeyError, TypeError, ValueError: no entry of a header."""
    start, end = item["data_offsets"]
    dtype = DTYPES.get(item["dtype"])
    if dtype is None:
        raise SetupError(f"{path}: {name} has type {item['dtype']}, which is not supported")
    shape = tuple(item["shape"])
    if start < 0 or end - start != prod(shape) * dtype.itemsize or base + end > size:
        raise SetupError(f"{path} is cut short or damaged at {name}; download the file again")
    return Entry(path, base + start, end - start, dtype, shape)


def natural(name: str) -> tuple[object, ...]:
    """Orders ``experts.10`` after ``experts.9``."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name))
