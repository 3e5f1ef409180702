"""How far the reading of a file is; who wants to know sets a watcher, loaders know nothing of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    file: Path
    rows: int
    rows_total: int | None = None
    """None where only the end of the file tells (JSON Lines)."""
    bytes_read: int | None = None
    """Of the file as it lies on disk, compressed or not; None where rows tell more (Parquet)."""
    bytes_total: int | None = None

    def __str__(self) -> str:
        rows = f"{self.rows:,} of {self.rows_total:,} rows" if self.rows_total else f"{self.rows:,} rows"
        if self.bytes_read is None or self.bytes_total is None:
            return f"{self.file.name}: {rows}"
        return f"{self.file.name}: {rows}, {self.bytes_read / 1e6:,.1f} of {self.bytes_total / 1e6:,.1f} MB"


_watcher: ContextVar[Callable[[Reading], None] | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(watcher: Callable[[Reading], None]) -> Iterator[None]:
    """Call ``watcher`` after each row that is read within the block."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def report(
    file: Path,
    *,
    rows: int,
    rows_total: int | None = None,
    bytes_read: int | None = None,
    bytes_total: int | None = None,
) -> None:
    """Tell the watcher, if there is one."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(Reading(file=file, rows=rows, rows_total=rows_total, bytes_read=bytes_read, bytes_total=bytes_total))
