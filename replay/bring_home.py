"""A run's files, from the host it ran on to the folder of the sweep, where the two share no disk."""

import zlib
from collections.abc import Mapping
from pathlib import Path

from replay.record import RESULT_FILE, TURNS_FILE

MOST_BYTES = 256 << 20
"""Packed. A launcher carries them in memory, Ray in its object store."""
FIRST = (RESULT_FILE, TURNS_FILE)
"""Come home whatever else does not."""


def packed(folder: Path, *, most_bytes: int = MOST_BYTES) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """``(files, left)``: name below ``folder`` → packed content; and the names of those that are too much.

    The result and the turns are always among the files; of the others the small ones come first.
    """
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    order = sorted(paths, key=lambda name: (name not in FIRST, paths[name].stat().st_size, name))
    files: dict[str, bytes] = {}
    left = []
    used = 0
    for name in order:
        # What does not fit as it is hardly fits when packed, and need not be read to know it.
        if name not in FIRST and used + paths[name].stat().st_size // 20 > most_bytes:
            left.append(name)
            continue
        content = zlib.compress(paths[name].read_bytes(), 1)
        if name not in FIRST and used + len(content) > most_bytes:
            left.append(name)
            continue
        files[name] = content
        used += len(content)
    return files, tuple(left)


def unpack(files: Mapping[str, bytes], folder: Path) -> None:
    """Write them; one that is there is replaced, the result last: with it the run is known to have ended."""
    for name in sorted(files, key=lambda name: name == RESULT_FILE):
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{name} is no file of a run")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zlib.decompress(files[name]))
