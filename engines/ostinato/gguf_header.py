"""What the header of a GGUF file, or of one cut in parts, says: its fields, and where its tensors lie."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from engines.ostinato.errors import SetupError

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor."""

    path: Path
    offset: int
    """Of its first byte in the file."""
    nbytes: int
    kind: str
    """Its type's name in the format, such as BF16 or MXFP4."""
    shape: tuple[int, ...]
    """As PyTorch has it, rows first."""


@dataclass(frozen=True, slots=True)
class Header:
    """Not to be changed: it is kept for the next who asks."""

    fields: dict[str, Any]
    """Of a text array (the vocabulary) a list."""
    tensors: dict[str, Stored]


def read(path: Path) -> Header:
    """The header, kept until a file changes: weights, vocabulary, chat template and shape all come from it, and
    150,000 tokens take over a second.

    Raises:
        SetupError: a damaged, short or missing file.
    """
    try:
        seen = [(part, part.stat()) for part in _parts(path)]
    except OSError as error:
        raise SetupError(f"{path} can't be read: {error.strerror}") from error
    return _read(tuple((part, of.st_mtime_ns, of.st_size) for part, of in seen))


def forget() -> None:
    """Free what is kept, some 50 MB of a large vocabulary."""
    _read.cache_clear()


@lru_cache(maxsize=1)
def _read(versions: tuple[tuple[Path, int, int], ...]) -> Header:
    from gguf import GGUFReader  # slow to import, and only needed for these files

    class Reader(GGUFReader):
        """Over a plain array: each of the 300,000 slices of a ``memmap`` is one more, which takes thrice as long."""

        @property  # type: ignore[override]
        def data(self) -> np.ndarray:
            return self._plain

        @data.setter
        def data(self, mapped: np.ndarray) -> None:
            self._plain = np.asarray(mapped)

    header = Header({}, {})
    for path, _, size in versions:
        try:
            reader = Reader(path)
        except OSError as error:
            raise SetupError(f"{path} can't be read: {error.strerror}") from error
        except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
            raise SetupError(f"{path} has no readable GGUF header: {error}; download the file again") from error
        for name, field in reader.fields.items():
            header.fields.setdefault(name, field.contents())
        for item in reader.tensors:
            offset, nbytes = int(item.data_offset), int(item.n_bytes)
            if offset + nbytes > size:
                raise SetupError(f"{path} is cut short or damaged at {item.name}; download the file again")
            shape = tuple(int(n) for n in reversed(item.shape))
            header.tensors[str(item.name)] = Stored(path, offset, nbytes, item.tensor_type.name, shape)
    return header


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
