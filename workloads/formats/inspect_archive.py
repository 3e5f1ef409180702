"""The samples of an Inspect ``.eval`` archive: a zip of ``header.json`` and ``samples/<id>_epoch_<n>.json``."""

import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from workloads.formats.recognise import looks_like
from workloads.session import WorkloadError

MAGIC = b"PK"
HEADER = "header.json"
START = "_journal/start.json"
"""The header of a log that was not finished."""
SAMPLES = "samples/"


def is_archive(path: Path) -> bool:
    """Whether the file begins as a zip does.

    Raises:
        WorkloadError: it can't be read.
    """
    try:
        with path.open("rb") as file:
            return path.suffix == ".eval" or file.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise WorkloadError(f"{path}: can't be read ({error.strerror}); check its permissions") from error


def samples_of(path: Path) -> Iterator[tuple[str, str, Any]]:
    """Yield ``(task, place, sample)`` one by one.

    Raises:
        WorkloadError: not a whole archive, not a log, or one without samples.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise _broken(path, error) from error
    with archive:
        names = archive.namelist()
        head = next((name for name in (HEADER, START) if name in names), None)
        found = [name for name in names if name.startswith(SAMPLES) and name.endswith(".json")]
        if head is None:
            raise WorkloadError(
                f"{path}: an archive without {HEADER}, so no Inspect log; choose the format that fits"
            )
        if not found:
            raise WorkloadError(f"{path}: a log without samples; use the whole log")
        header = _member(path, archive, head)
        task = header.get("eval", {}) if isinstance(header, dict) else {}
        name = task.get("task") if isinstance(task, dict) else None
        if not isinstance(name, str):
            raise WorkloadError(f"{path}: {head} names no eval.task but is {looks_like(header)}; use the whole log")
        for one in found:
            yield name, f"{path}, {one}", _member(path, archive, one)


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> Any:
    try:
        data = archive.read(name)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError) as error:
        raise _broken(path, error, name) from error
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"{path}, {name}: broken JSON ({error}); download the log again") from error


def _broken(path: Path, error: Exception, member: str = "") -> WorkloadError:
    """NotImplementedError (a RuntimeError) is zipfile's word for a compression that it does not know."""
    place = f"{path}, {member}" if member else str(path)
    if isinstance(error, NotImplementedError):
        return WorkloadError(f"{place}: {error}; write the log anew with `inspect log convert --to json`")
    return WorkloadError(f"{place}: not a whole .eval archive ({error}); download it again")
