"""What is kept of each turn: observations only, so that a metric's definition can change later."""

import fcntl
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

RECORD_VERSION = 1
TURNS_FILE = "turns.jsonl"
RESULT_FILE = "result.json"
PRESSURE_FILE = "pressure.jsonl"
_BLOCK = 1 << 16


class RecordError(Exception):
    """Records that can't be read or written; the message names the file and, where there is one, the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One turn on one engine. All times are ``perf_counter_ns`` readings of one process; None is "not measured"."""

    engine: str
    session_id: str
    turn: int
    """0 for the session's first model call."""
    kind: str
    """``first``, ``tool`` or ``user``."""
    attempt: int
    """0 for the first try at this session; only a session's last attempt counts."""
    repeat: int = 0
    status: str
    """``ok``, or the kind of failure (``EngineError.kind``)."""
    error: str | None = None
    """What the server said, when it failed."""
    prompt_tokens: int
    new_tokens: int
    """Prompt tokens beyond the previous turn's prompt and output, from the recording."""
    output_tokens: int
    due_ns: int
    sent_ns: int | None = None
    first_byte_ns: int | None = None
    token_ns: tuple[int, ...] = ()
    """Arrival of each output token; tokens of one chunk share a reading."""
    end_ns: int | None = None
    verified_by: str | None = None
    server_token_ns: tuple[int, ...] | None = None
    cached_tokens: int | None = None
    prefilled_tokens: int | None = None
    server_prefill_s: float | None = None
    server_decode_s: float | None = None


class RecordWriter:
    """Appends turns to ``turns.jsonl``: each is with the kernel before the next one starts, and survives a kill -9.

    ``sync`` puts them on the disk, where they survive a power cut; it takes milliseconds, in which no arrival is
    stamped unless another thread calls it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / TURNS_FILE
        # Unbuffered: a line that did not fit would wait in the buffer and be tried again on close.
        self._file = self._path.open("a+b", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise RecordError(f"{self._path}: another `replay` is writing to it; wait for it or stop it") from None
        _drop_cut_line(self._file)

    def append(self, record: TurnRecord) -> None:
        """Raises RecordError when the disk is full; the turns before stay whole."""
        whole = self._file.tell()
        line = memoryview(orjson.dumps({"version": RECORD_VERSION, **asdict(record)}) + b"\n")
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            self._file.truncate(whole)
            raise _unwritable(self._path, error) from error

    def sync(self) -> None:
        """Raises RecordError when the disk can't take what was written."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _unwritable(self._path, error) from error

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _drop_cut_line(file: FileIO) -> None:
    """Remove a last line that a kill cut short, or the next one would be written behind its half."""
    end = whole = file.seek(0, os.SEEK_END)
    while whole > 0:
        start = max(0, whole - _BLOCK)
        file.seek(start)
        found = file.read(whole - start).rfind(b"\n")
        whole = start + found + 1
        if found >= 0:
            break
    if whole < end:
        file.truncate(whole)
    file.seek(whole)


_FIELDS = {field.name for field in fields(TurnRecord)}


def read_turns(folder: Path) -> Iterator[TurnRecord]:
    """Yield the turns of a run folder. A last line that a kill cut short is passed over.

    Raises:
        RecordError: no records, another version, or a damaged line that is not the last.
    """
    path = folder / TURNS_FILE
    if not path.is_file():
        raise RecordError(f"{path}: no such file; name a folder that `replay` wrote")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            yield _turn(line, f"{path}:{number}")


def _turn(line: bytes, place: str) -> TurnRecord:
    try:
        row: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise RecordError(f"{place}: not JSON ({error}); the file was changed after the run") from error
    if not isinstance(row, dict):
        raise RecordError(f"{place}: a record is a JSON object; the file was changed after the run")
    version = row.pop("version", None)
    if version != RECORD_VERSION:
        raise RecordError(f"{place}: record version {version}, this program reads version {RECORD_VERSION}")
    if unknown := row.keys() - _FIELDS:
        raise RecordError(f"{place}: unknown field {sorted(unknown)[0]!r}; the file was changed after the run")
    try:
        row["token_ns"] = tuple(row.get("token_ns", ()))
        if row.get("server_token_ns") is not None:
            row["server_token_ns"] = tuple(row["server_token_ns"])
        return TurnRecord(**row)
    except TypeError as error:
        raise RecordError(f"{place}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class PressureRecord:
    """One worker's part in one phase of background load. Times are on the clock of the turns."""

    phase: int
    worker: int
    kind: str
    """``cpu``, ``memory``, ``gpu`` or ``pcie``."""
    level: float
    """Percent of the time that was asked for."""
    started_ns: int
    stopped_ns: int | None = None
    """None: the worker was killed."""
    busy_share: float | None = None
    """Share of the time that it was really at it: CPU time of one core for ``cpu``, wall time else."""
    cpu_share: float | None = None
    """CPU time of the worker, of one core."""
    bytes_per_s: float | None = None


def read_pressure(folder: Path) -> list[PressureRecord]:
    """The background load of a run, in the order it began; empty when there was none.

    Raises:
        RecordError: a damaged line.
    """
    path = folder / PRESSURE_FILE
    if not path.is_file():
        return []
    found: dict[tuple[int, int, str, int], PressureRecord] = {}
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        try:
            record = PressureRecord(**orjson.loads(line))
        except (orjson.JSONDecodeError, TypeError) as error:
            raise RecordError(f"{path}:{number}: {error}; the file was changed after the run") from error
        # A phase writes a line when it begins and a fuller one when it ends.
        found[record.phase, record.worker, record.kind, record.started_ns] = record
    return list(found.values())


def write_result(folder: Path, result: dict[str, Any]) -> None:
    """Replace ``result.json``.

    Raises:
        RecordError: the disk is full.
    """
    write_json(folder / RESULT_FILE, result)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Replace a file in one step, so that a reader never sees half of it.

    Raises:
        RecordError: the disk is full.
    """
    temporary = path.with_name(path.name + ".new")
    try:
        temporary.write_bytes(orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> RecordError:
    return RecordError(f"{path}: {error.strerror}; free some space or set results=<a folder on another disk>")


def read_result(folder: Path) -> dict[str, Any]:
    """The run's summary: status, engine, workload, model, environment, configuration.

    Raises:
        RecordError: none there, or damaged.
    """
    path = folder / RESULT_FILE
    try:
        result = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise RecordError(f"{path}: no such file; name a folder that `replay` wrote") from None
    except orjson.JSONDecodeError as error:
        raise RecordError(f"{path}: not JSON ({error}); run `replay` again") from error
    if not isinstance(result, dict):
        raise RecordError(f"{path}: a result is a JSON object; run `replay` again")
    return result
