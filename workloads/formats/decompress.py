"""Files as bytes, decompressed on the way: gzip and Zstandard, told by their first bytes and not by their name."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from workloads.session import WorkloadError

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
SUFFIXES = (".gz", ".zst", ".zstd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    stream: io.BufferedIOBase
    """What the file holds, decompressed."""
    on_disk: BinaryIO
    size: int
    """Bytes on disk."""

    @property
    def position(self) -> int:
        """Bytes of the file on disk that were read."""
        return self.on_disk.tell()


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """Open a file for reading.

    Raises:
        WorkloadError: it can't be read, or it is cut off or broken inside its compression.
    """
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            magic = file.peek(4)[:4]
            if magic.startswith(GZIP_MAGIC):
                with gzip.GzipFile(fileobj=file) as stream:
                    yield Opened(stream=io.BufferedReader(stream), on_disk=file, size=size)
            elif magic == ZSTD_MAGIC:
                import pyarrow as pa

                with pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd") as stream:
                    yield Opened(stream=io.BufferedReader(stream), on_disk=file, size=size)
            else:
                yield Opened(stream=file, on_disk=file, size=size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise WorkloadError(f"{path}: broken gzip data ({error}); download it again") from error
    except OSError as error:
        reason = error.strerror or str(error)
        advice = "check its permissions" if error.strerror else "download it again"
        raise WorkloadError(f"{path}: can't be read ({reason}); {advice}") from error


def bare_suffix(path: Path) -> str:
    """Return the suffix without that of a compression: ``.jsonl`` of ``rows.jsonl.zst``."""
    return (path.with_suffix("") if path.suffix in SUFFIXES else path).suffix
