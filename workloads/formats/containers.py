"""JSON values out of a .json, .jsonl or .parquet file (plain, .gz or .zst), one at a time."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workloads.formats.decompress import SUFFIXES as COMPRESSED
from workloads.formats.decompress import bare_suffix, opened
from workloads.formats.reading import report
from workloads.formats.recognise import looks_like
from workloads.session import WorkloadError

LINES = (".jsonl", ".ndjson")
SUFFIXES = (".json", *LINES, ".parquet")
PARQUET_MAGIC = b"PAR1"
BATCH_ROWS = 8
"""A row can hold 250 kB and a row group 1 GB, so a batch is a few rows and never a row group."""
BUFFER_BYTES = 1 << 20
"""Column chunks are read through a buffer of this size instead of whole."""
UTF_8_MARK = b"\xef\xbb\xbf"


def rows(path: Path, *, columns: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``(place, row)`` from one file, from every such file of a folder in order of name, or from a data set of
    the Hugging Face hub (`workloads.hub`).

    Args:
        columns: the only Parquet columns to read, where the file has them; all when empty. JSON rows come whole.

    Raises:
        WorkloadError: a missing, empty or broken file, or a row that is no object. The place says which line or row.
    """
    for place, value in values(path, columns=columns):
        if not isinstance(value, dict):
            raise WorkloadError(f"{place}: expected a JSON object, found {looks_like(value)}")
        yield place, value


def values(path: Path, *, columns: Sequence[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield what `rows` yields, but rows may be any JSON values: text, numbers, lists.

    Raises:
        WorkloadError: a missing, empty or broken file.
    """
    from workloads import hub

    if hub.is_name(path):
        yield from hub.rows(path, columns=columns)
        return
    for file in files(path):
        yield from _values(file, columns)


def files(path: Path) -> list[Path]:
    """Return the file itself, or the row files of a folder.

    Raises:
        WorkloadError: nothing there.
    """
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if bare_suffix(file) in SUFFIXES and file.is_file())
        if not found:
            kinds, more = ", ".join(SUFFIXES), ", ".join(COMPRESSED)
            raise WorkloadError(
                f"{path}: the folder holds no {kinds} file (or one of them with {more}); name another"
            )
        return found
    if not path.exists():
        raise WorkloadError(f"{path}: no such file or folder; check the path")
    return [path]


def read_json(path: Path) -> Any:
    """Return the one JSON value of a file.

    Raises:
        WorkloadError: no such file, nothing in it, or broken JSON (the line is named).
    """
    text = read_text(path)
    if not text.strip():
        raise WorkloadError(f"{path}: the file is empty; download or record it again")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise WorkloadError(
            f"{path}: broken JSON at line {error.lineno}, column {error.colno} ({error.msg}); download it again"
        ) from error
    except RecursionError as error:
        raise _too_deep(str(path)) from error


def read_text(path: Path) -> str:
    """Return the text of a whole file, decompressed.

    Raises:
        WorkloadError: no such file, or one that is no UTF-8 text.
    """
    if not path.is_file():
        raise WorkloadError(f"{path}: no such file; check the path")
    with opened(path) as file:
        report(path, rows=0, bytes_read=0, bytes_total=file.size)
        data = file.stream.read()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_text(path, error) from error


def is_rows(path: Path) -> bool:
    """Tell a file of rows (Parquet, JSON Lines) from one that holds a single document, whatever it is called."""
    return _is_parquet(path) or _is_lines(path)


def _values(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
    if _is_parquet(path):
        return _parquet_rows(path, columns)
    return _lines(path) if _is_lines(path) else _document_rows(path)


def _is_parquet(path: Path) -> bool:
    if bare_suffix(path) == ".parquet":
        return True
    with opened(path) as file:
        return file.stream.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC


def _is_lines(path: Path) -> bool:
    with opened(path) as file:
        first, second = file.stream.readline(), file.stream.readline()
    if bare_suffix(path) in LINES:
        return first.strip() not in (b"[", b"{")  # else somebody's pretty-printed document
    if not second.strip():
        return False
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _document_rows(path: Path) -> Iterator[tuple[str, Any]]:
    document = read_json(path)
    if not isinstance(document, list):
        yield str(path), document
        return
    if not document:
        raise WorkloadError(f"{path}: the file has no rows; download or record it again")
    for number, value in enumerate(document, start=1):
        yield f"{path}, row {number}", value
        report(path, rows=number, rows_total=len(document))


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    found = 0
    with opened(path) as file:
        for number, line in enumerate(file.stream, start=1):
            if not line.strip():
                continue
            found += 1
            place = f"{path}, line {number}"
            try:
                value = json.loads(line.removeprefix(UTF_8_MARK) if number == 1 else line)
            except json.JSONDecodeError as error:
                raise WorkloadError(
                    f"{path}: broken JSON at line {number}, column {error.colno} ({error.msg});"
                    " download or record it again, or delete the line"
                ) from error
            except UnicodeDecodeError as error:
                raise _not_text(path, error) from error
            except RecursionError as error:
                raise _too_deep(place) from error
            yield place, value
            report(path, rows=found, bytes_read=file.position, bytes_total=file.size)
    if not found:
        raise WorkloadError(f"{path}: the file is empty; download or record it again")


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix in COMPRESSED:
        raise WorkloadError(f"{path}: Parquet is compressed inside, and not read through {path.suffix}; unpack it")
    if path.stat().st_size == 0:
        raise WorkloadError(f"{path}: the file is empty; download or record it again")
    number = 0
    try:
        with pq.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
            names = file.schema_arrow.names
            wanted = [name for name in columns if name in names] or names
            total = file.metadata.num_rows
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=wanted, use_threads=False):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
                    report(path, rows=number, rows_total=total)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise WorkloadError(f"{path}: not a readable Parquet file ({reason}); download it again") from error
    if not number:
        raise WorkloadError(f"{path}: the file has no rows; download or record it again")


def _not_text(path: Path, error: UnicodeDecodeError) -> WorkloadError:
    return WorkloadError(f"{path}: not UTF-8 text (byte {error.start}); save or download it again")


def _too_deep(place: str) -> WorkloadError:
    return WorkloadError(f"{place}: JSON nested too deeply to be a recording; check the file")
