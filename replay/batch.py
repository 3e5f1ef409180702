"""The runs that one command starts, and the file by which a later command finds them."""

import getpass
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from replay.record import RESULT_FILE, RecordError, read_result, write_json
from replay.redact import HIDDEN, redact
from replay.rows import config_hash

BATCH_FILE = "batch.json"
RESUME = "resume="
"""Begins the word that names what to go on with."""
BATCH_VERSION = 1
"""A row's ``config`` may be resolved or not, and its ``config_hash`` be absent: older files are read all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run to be."""

    folder: Path
    config: Mapping[str, Any]
    """Not resolved: what depends on the machine (``${usable_cores:}``) is the running machine's."""
    command: Sequence[str] = ()
    """What was typed to get it."""
    config_hash: str = ""
    """Of what is measured: a folder with this hash in its result holds this run."""

    @property
    def name(self) -> str:
        """Its engine's."""
        return str((self.config.get("engine") or {}).get("name", self.folder.name))


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
    """Some of its runs may be there, whole or in part."""
    taken_up: bool = False
    """It is one that an earlier command made: its order stays."""
    launcher: Mapping[str, Any] | None = None
    """Hydra's configuration of what starts the runs; None: this process does, one after another."""
    others: list[Any] = field(default_factory=list)
    """Rows of the batch file, as they stand there, that this command does not run."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """By which another host knows that it sees this folder and not one of its own."""
    fresh: list[Path] = field(default_factory=list)
    """Run folders that were empty when this command came: what is in them is its own."""
    made: list[Path] = field(default_factory=list)
    """``folder`` and those above it that did not exist before, innermost first."""

    def __post_init__(self) -> None:
        self.folder = self.folder.absolute()
        self.made = [path for path in (self.folder, *self.folder.parents) if not os.access(path, os.F_OK)]

    def write(self) -> None:
        """Raises RecordError when the disk is full."""
        rows = [{**asdict(row), "folder": os.path.relpath(row.folder, self.folder)} for row in self.rows]
        about = {"version": BATCH_VERSION, "id": self.id, "sweep": self.sweep, "launcher": self.launcher}
        write_json(self.folder / BATCH_FILE, {**redact(about), "rows": [*redact(rows), *self.others]})


def with_hashes(rows: Sequence[Row]) -> list[Row]:
    """Each with the hash of its configuration. The hash is of what is stored, so it can be told from that."""
    stored = redact([row.config for row in rows])
    return [replace(row, config_hash=config_hash(config)) for row, config in zip(rows, stored, strict=True)]


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
        row = Row(
            folder=folder,
            config=restored(result["config"]),
            command=[*result.get("command", ()), *command],
            config_hash=result.get("config_hash") or "",
        )
        return Batch(folder=folder, report=result["config"]["report"], rows=[row], resume=True, taken_up=True)
    raise RecordError(f"{folder}: no {BATCH_FILE} or {RESULT_FILE} there; name a folder that `replay` wrote")


def _read(above: Path, wanted: Path, command: Sequence[str]) -> Batch:
    path = above / BATCH_FILE
    found = stored(above)
    try:
        rows = [
            Row(
                folder=(above / row["folder"]).resolve(),
                config=restored(row["config"]),
                command=[*row["command"], *command],
                config_hash=row.get("config_hash", ""),
            )
            for row in found["rows"]
        ]
        report, sweep = rows[0].config["report"], found["sweep"]
    except (KeyError, TypeError, IndexError) as error:
        raise RecordError(f"{path}: damaged ({error!r}); name one run's folder instead") from error
    chosen = [row for row in rows if wanted in (above, row.folder)]
    if not chosen:
        raise RecordError(f"{wanted}: {path} lists no such run; name {above} or a run's folder")
    others = [kept for kept, row in zip(found["rows"], rows, strict=True) if row not in chosen]
    return Batch(
        folder=above,
        report=report,
        rows=chosen,
        sweep=sweep,
        resume=True,
        taken_up=True,
        launcher=restored(found.get("launcher")),
        others=others,
    )


def stored(folder: Path) -> dict[str, Any]:
    """The batch file as it stands.

    Raises:
        RecordError: none there, or a damaged one.
    """
    path = folder / BATCH_FILE
    try:
        found = orjson.loads(path.read_bytes())
        if found["version"] != BATCH_VERSION:
            raise RecordError(f"{path}: version {found['version']}, this program reads version {BATCH_VERSION}")
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise RecordError(f"{path}: damaged ({error!r}); name one run's folder instead") from error
    return dict(found)


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
