"""Rows of JSON objects out of a .json, .jsonl or .parquet file, one at a time."""

import json
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

from workloads.formats.recognise import looks_like
from workloads.session import WorkloadError

SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet")
PARQUET_MAGIC = b"PAR1"
BATCH_ROWS = 8
"""A row can hold 250 kB and a row group 1 GB, so a batch is a few rows and never a row group."""
BUFFER_BYTES = 1 << 20
"""Column chunks are read through a buffer of this size instead of whole."""


def rows(path: Path, *, columns: Sequence[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``(place, row)`` from one file or from every such file of a folder, in order of name.

    Args:
        columns: the only Parquet columns to read, where the file has them; all when empty. JSON rows come whole.

    Raises:
        WorkloadError: a missing, empty or broken file, or a row that is no object. The place says which line or row.
    """
    for file in files(path):
        if _is_parquet(file):
            yield from _parquet_rows(file, columns)
        elif file.suffix in {".jsonl", ".ndjson"} or _is_json_lines(file):
            yield from _line_rows(file)
        else:
            yield from _document_rows(file)


def files(path: Path) -> list[Path]:
    """Return the file itself, or the row files of a folder.

    Raises:
        WorkloadError: nothing there.
    """
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
        if not found:
            raise WorkloadError(f"{path}: the folder holds no {', '.join(SUFFIXES)} file; name another")
        return found
    if not path.exists():
        raise WorkloadError(f"{path}: no such file or folder; check the path")
    return [path]


def read_json(path: Path) -> Any:
    """Return the one JSON value of a file.

    Raises:
        WorkloadError: no such file, nothing in it, or broken JSON (the line is named).
    """
    if not path.is_file():
        raise WorkloadError(f"{path}: no such file; check the path")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise WorkloadError(f"{path}: can't be read ({error.strerror}); check its permissions") from error
    except UnicodeDecodeError as error:
        raise _not_text(path, error) from error
    if not text.strip():
        raise WorkloadError(f"{path}: the file is empty; download or record it again")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise WorkloadError(
            f"{path}: broken JSON at line {error.lineno}, column {error.colno} ({error.msg}); download it again"
        ) from error


def _not_text(path: Path, error: UnicodeDecodeError) -> WorkloadError:
    return WorkloadError(f"{path}: not UTF-8 text (byte {error.start}); decompress it first if it is compressed")


def _is_parquet(path: Path) -> bool:
    if path.suffix == ".parquet":
        return True
    with _opened(path) as stream:
        return stream.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC


def _opened(path: Path) -> BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise WorkloadError(f"{path}: can't be read ({error.strerror}); check its permissions") from error


def _is_json_lines(path: Path) -> bool:
    """Tell a .json file that holds one object a line from one that holds a single document."""
    with _opened(path) as stream:
        first, second = stream.readline(), stream.readline()
    if not second.strip():
        return False
    try:
        return isinstance(json.loads(first), dict)
    except ValueError:
        return False


def _object(value: Any, path: Path, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise WorkloadError(f"{path}, {place}: expected a JSON object, found {looks_like(value)}")
    return value


def _document_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    document = read_json(path)
    if not isinstance(document, list):
        yield str(path), _object(document, path, "line 1")
        return
    if not document:
        raise WorkloadError(f"{path}: the file has no rows; download or record it again")
    for number, value in enumerate(document, start=1):
        yield f"{path}, row {number}", _object(value, path, f"row {number}")


def _line_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    found = False
    with _opened(path) as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            found = True
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise WorkloadError(
                    f"{path}: broken JSON at line {number}, column {error.colno} ({error.msg});"
                    " download or record it again, or delete the line"
                ) from error
            except UnicodeDecodeError as error:
                raise _not_text(path, error) from error
            yield f"{path}, line {number}", _object(value, path, f"line {number}")
    if not found:
        raise WorkloadError(f"{path}: the file is empty; download or record it again")


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.stat().st_size == 0:
        raise WorkloadError(f"{path}: the file is empty; download or record it again")
    try:
        with pq.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False) as file:
            names = file.schema_arrow.names
            wanted = [name for name in columns if name in names] or names
            number = 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=wanted, use_threads=False):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise WorkloadError(f"{path}: not a readable Parquet file ({reason}); download it again") from error
    if not number:
        raise WorkloadError(f"{path}: the file has no rows; download or record it again")
