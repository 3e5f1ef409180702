"""The runs that one command starts, and the file by which a later command finds them."""

import getpass
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from replay.record import RESULT_FILE, RecordError, read_result, write_json
from replay.redact import HIDDEN, redact

BATCH_FILE = "batch.json"
BATCH_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run to be."""

    folder: Path
    config: Mapping[str, Any]
    """The resolved configuration."""
    command: Sequence[str] = ()
    """What was typed to get it."""


@dataclass
class Batch:
    """The runs of one command."""

    folder: Path
    """Where the report goes; the run folders are there or below."""
    report: str | None
    rows: list[Row] = field(default_factory=list)
    """In the order they are run in."""
    sweep: bool = False
    resume: bool = False
    fresh: list[Path] = field(default_factory=list)
    """Run folders that were empty when this command came: what is in them is its own."""
    made: list[Path] = field(default_factory=list)
    """``folder`` and those above it that did not exist before, innermost first."""

    def __post_init__(self) -> None:
        self.made = [path for path in (self.folder, *self.folder.parents) if not os.access(path, os.F_OK)]

    def write(self) -> None:
        """Raises RecordError when the disk is full."""
        rows = [{**asdict(row), "folder": os.path.relpath(row.folder, self.folder)} for row in self.rows]
        write_json(self.folder / BATCH_FILE, redact({"version": BATCH_VERSION, "sweep": self.sweep, "rows": rows}))


def interrupted(folder: Path, command: Sequence[str]) -> Batch:
    """The batch that ``folder`` belongs to, to be gone on with: all of it, or the one run whose folder this is.

    Args:
        command: what was typed now; kept with each run beside what was typed first.

    Raises:
        RecordError: no run there, or a damaged file.
    """
    folder = folder.expanduser().resolve()
    if (folder / BATCH_FILE).is_file():
        return _read(folder, folder, command)
    if (folder.parent / BATCH_FILE).is_file():
        return _read(folder.parent, folder, command)
    if (folder / RESULT_FILE).is_file():
        result = read_result(folder)
        row = Row(folder=folder, config=restored(result["config"]), command=[*result.get("command", ()), *command])
        return Batch(folder=folder, report=result["config"]["report"], rows=[row], resume=True)
    raise RecordError(f"{folder}: no {BATCH_FILE} or {RESULT_FILE} there; name a folder that `replay` wrote")


def _read(above: Path, wanted: Path, command: Sequence[str]) -> Batch:
    path = above / BATCH_FILE
    try:
        found = orjson.loads(path.read_bytes())
        if found["version"] != BATCH_VERSION:
            raise RecordError(f"{path}: version {found['version']}, this program reads version {BATCH_VERSION}")
        rows = [
            Row(
                folder=(above / row["folder"]).resolve(),
                config=restored(row["config"]),
                command=[*row["command"], *command],
            )
            for row in found["rows"]
        ]
        report, sweep = rows[0].config["report"], found["sweep"]
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError) as error:
        raise RecordError(f"{path}: damaged ({error!r}); name one run's folder instead") from error
    rows = [row for row in rows if wanted in (above, row.folder)]
    if not rows:
        raise RecordError(f"{wanted}: {path} lists no such run; name {above} or a run's folder")
    return Batch(folder=above, report=report, rows=rows, sweep=sweep, resume=True)


def restored(value: Any) -> Any:
    """The configuration that ``redact`` made ``value`` of: home folder and user name are put back."""
    if isinstance(value, str):
        return value if "~" not in value and "/user" not in value else _restored_text(value)
    if isinstance(value, Mapping):
        return {key: restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [restored(item) for item in value]
    return value


def _restored_text(text: str) -> str:
    home = text.replace("~", str(Path.home()))
    try:
        named = "/".join(getpass.getuser() if part == "user" else part for part in home.split("/"))
    except (KeyError, OSError):  # a container's user may have no name
        return home
    # A folder may really be called "user".
    return home if Path(home).exists() or not Path(named).exists() else named


def hidden(value: Any, place: str = "") -> list[str]:
    """Settings whose value was taken out as a secret."""
    if isinstance(value, Mapping):
        return [name for key, item in value.items() for name in hidden(item, f"{place}.{key}".lstrip("."))]
    if isinstance(value, list):
        return [name for item in value for name in hidden(item, place)]
    return [place] if isinstance(value, str) and HIDDEN in value else []
