"""Which recorded format a file, folder or data set is of, told by what it begins with."""

import json
import zipfile
from pathlib import Path
from typing import Any

from workloads import hub
from workloads.formats import registry
from workloads.formats.containers import SUFFIXES, is_rows, read_json, values
from workloads.formats.decompress import bare_suffix, opened
from workloads.formats.recognise import looks_like
from workloads.formats.tau2 import MANIFEST
from workloads.session import WorkloadError

TEXT_SHOWN = 4096
FILES_TRIED = 4
"""Of a folder; one format reads all of it, so the first files tell."""
ZIP_MAGIC = b"PK\x03\x04"
RECORDINGS = (*SUFFIXES, ".traj", ".yaml", ".yml", ".eval")
DOCUMENTS = (".json", ".traj")


def detect(path: Path) -> str:
    """Return the name of the format.

    Raises:
        WorkloadError: a file that can't be read, is of no known format (the message says what it looks like), or
            could be of several (they are named).
    """
    if hub.is_name(path) and (known := hub.data_set(path).format):
        return known
    tried = _to_try(path)
    found: dict[str, Path] = {}
    heads = []
    for file in tried:
        head = _head(file)
        heads.append(head)
        for one in registry.matching(head):
            found.setdefault(one.name, file)
    if len(found) == 1:
        return next(iter(found))
    if found:
        names = " and ".join(f"{name} ({file.name})" for name, file in found.items())
        raise WorkloadError(f"{path}: could be {names}; say which with source={' or source='.join(found)}")
    likeness = "; ".join(dict.fromkeys(map(_likeness, heads))) or "nothing"
    raise WorkloadError(
        f"{path}: of no format known here, it looks like {likeness}; say source=<format> if it is one of"
        f" {', '.join(registry.NAMES)}"
    )


def _to_try(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if (path / MANIFEST).is_file():
        return [path / MANIFEST]
    files = [
        file
        for file in sorted(path.rglob("*"))
        if bare_suffix(file) in RECORDINGS and file.is_file() and file.stat().st_size
    ]
    if not files:
        raise WorkloadError(
            f"{path}: the folder holds no {', '.join(RECORDINGS)} file with anything in it; name another"
        )
    return files[:FILES_TRIED]


def _head(path: Path) -> Any:
    """What `registry.matching` wants to see of a file."""
    if hub.is_name(path):
        return next(values(path))[1]
    if not path.is_file():
        raise WorkloadError(
            f"{path}: no such file or folder; check the path. A data set of the Hugging Face hub is one of"
            f" {', '.join(hub.KNOWN)}, or owner/name@<40-digit commit>"
        )
    with opened(path) as file:
        start = file.stream.read(TEXT_SHOWN)
    if start.startswith(ZIP_MAGIC):
        return ("archive", *_members(path))
    if is_rows(path):
        return next((value for _, value in values(path)), None)
    text = start.decode("utf-8", errors="replace")
    if bare_suffix(path) in DOCUMENTS or not text.strip():
        return read_json(path)
    try:
        return read_json(path)
    except WorkloadError:  # no recording has to be JSON
        return text


def _members(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except zipfile.BadZipFile as error:
        raise WorkloadError(f"{path}: not a whole archive ({error}); download it again") from error


def _likeness(head: Any) -> str:
    if isinstance(head, tuple):
        return f"an archive with {', '.join(head[1:4])}" if len(head) > 1 else "an empty archive"
    if isinstance(head, str):
        return f"text that begins with {json.dumps(head[:40], ensure_ascii=False)}"
    return looks_like(head)
