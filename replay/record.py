"""What is kept of each turn: observations only, so that a metric's definition can change later."""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

RECORD_VERSION = 1
TURNS_FILE = "turns.jsonl"
RESULT_FILE = "result.json"


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
    """Appends turns to ``turns.jsonl``; a turn is on disk before the next one starts."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TURNS_FILE
        # Unbuffered: a line that did not fit would wait in the buffer and be tried again on close.
        self._file = self._path.open("ab", buffering=0)

    def append(self, record: TurnRecord) -> None:
        """Raises RecordError when the disk is full; the turns before stay whole."""
        whole = self._file.tell()
        line = memoryview(orjson.dumps({"version": RECORD_VERSION, **asdict(record)}) + b"\n")
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(whole)
            raise _unwritable(self._path, error) from error

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
    row["token_ns"] = tuple(row.get("token_ns", ()))
    if row.get("server_token_ns") is not None:
        row["server_token_ns"] = tuple(row["server_token_ns"])
    if unknown := row.keys() - _FIELDS:
        raise RecordError(f"{place}: unknown field {sorted(unknown)[0]!r}; the file was changed after the run")
    try:
        return TurnRecord(**row)
    except TypeError as error:
        raise RecordError(f"{place}: {error}") from error


def write_result(folder: Path, result: dict[str, Any]) -> None:
    """Replace ``result.json`` in one step, so that a reader never sees half of it.

    Raises:
        RecordError: the disk is full.
    """
    temporary = folder / (RESULT_FILE + ".new")
    try:
        temporary.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS))
        temporary.replace(folder / RESULT_FILE)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _unwritable(folder / RESULT_FILE, error) from error


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
