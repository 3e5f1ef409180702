"""Folders that an agent writes, one file a session."""

from pathlib import Path

from workloads.formats.decompress import SUFFIXES as COMPRESSED
from workloads.session import WorkloadError


def files_below(path: Path, *endings: str) -> list[Path]:
    """Return the file itself, or every file at any depth of a folder whose name has one of the endings, in order.

    An ending also matches before that of a compression: ``.traj`` finds ``one.traj.gz``.

    Raises:
        WorkloadError: nothing there.
    """
    if not path.is_dir():
        if not path.exists():
            raise WorkloadError(f"{path}: no such file or folder; check the path")
        return [path]
    wanted = tuple(ending + packed for ending in endings for packed in ("", *COMPRESSED))
    found = sorted(file for file in path.rglob("*") if file.name.endswith(wanted) and file.is_file())
    if not found:
        raise WorkloadError(f"{path}: the folder holds no {' or '.join(endings)} file; name another")
    return found
