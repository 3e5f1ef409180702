"""Lines of a log that hold one of some marks, from a file of any size, at the speed of a search for bytes."""

import gzip
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from io import BufferedReader
from pathlib import Path
from typing import IO

BLOCK = 1 << 22
LONGEST_LINE = 1 << 26
"""A longer one has no end that is worth waiting for; what is held of it is searched and dropped."""
STANDARD_INPUT = Path("-")


def open_log(path: Path) -> AbstractContextManager[IO[bytes]]:
    """A plain or gzipped file, or ``-`` for standard input."""
    if path == STANDARD_INPUT:
        return nullcontext(sys.stdin.buffer)
    if path.suffix == ".gz":
        return BufferedReader(gzip.open(path, "rb"))
    return path.open("rb")


def marked_lines(stream: IO[bytes], marks: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the lines with any of ``marks``, in the file's order, without their ends."""
    rest = b""
    while block := stream.read(BLOCK):
        block = rest + block
        end = block.rfind(b"\n") + 1
        if not end and len(block) < LONGEST_LINE:
            rest = block
            continue
        whole, rest = (block[:end], block[end:]) if end else (block, b"")
        yield from _marked(whole, marks)
    yield from _marked(rest, marks)


def _marked(block: bytes, marks: Sequence[bytes]) -> Iterator[bytes]:
    nearest = {mark: block.find(mark) for mark in marks}
    while found := [at for at in nearest.values() if at >= 0]:
        at = min(found)
        start = block.rfind(b"\n", 0, at) + 1
        end = block.find(b"\n", at)
        end = len(block) if end < 0 else end
        yield block[start:end].rstrip(b"\r")
        for mark, place in nearest.items():
            if 0 <= place < end:
                nearest[mark] = block.find(mark, end)
