"""Session files: Parquet, one row a turn, a session's turns in consecutive rows.

Written and read in small row groups, so that memory does not grow with the file. The footer names the format's
version, the tokenizer that the ids belong to, and the hash of the content.
"""

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.content_hash import ContentHash
from workloads.session import TURN_KINDS, Session, Turn, WorkloadError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

VERSION = 2
"""Version 1 has no ``kept_ids``: every prompt keeps all of the one before. It is still read."""

_FOOTER = b"ostinato-replay.sessions"
_ROWS_A_GROUP, _IDS_A_GROUP = 256, 262_144  # about 1 MB of ids: small beside an interpreter, large beside a header
_ROWS_A_READ = 16  # as Python integers, 16 turns of 30,000 tokens take 17 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a session file says of itself."""

    version: int
    tokenizer_hash: str
    """sha256 of the tokenizer that rendered it (``Renderer.tokenizer_hash``)."""
    vocab_size: int
    """Every id is below it."""
    content_hash: str
    sessions: int
    turns: int
    split: str | None = None
    """Which part of a split it holds (`workloads.split`); None for all that was prepared."""


def content_hash(sessions: Iterable[Session]) -> str:
    """sha256 over every field of every session, in order; the same whatever file the sessions came from."""
    content = ContentHash()
    for session in sessions:
        content.add(session)
    return content.hexdigest()


def write(
    path: Path, sessions: Iterable[Session], *, tokenizer_hash: str, vocab_size: int, split: str | None = None
) -> None:
    """Write the sessions as they come. The file appears when it is complete, or not at all.

    Raises:
        WorkloadError: nothing to write, an empty output, an id outside the vocabulary, a kind or wait that is none,
            two sessions of one name, or a disk that refuses (full, read-only).
    """
    import pyarrow as pa  # slow to import, and most commands need none of it
    import pyarrow.parquet as pq

    schema = _schema()
    content, groups, seen, turns = ContentHash(), _Groups(schema), set[str](), 0
    try:
        with (
            _appears_when_complete(path) as temporary,
            pq.ParquetWriter(temporary, schema, compression="zstd") as file,
        ):
            for session in sessions:
                _check(session, vocab_size, str(path))
                if session.session_id in seen:
                    raise WorkloadError(f"{path}: two sessions are called {session.session_id}; rename one")
                seen.add(session.session_id)
                content.add(session)
                turns += len(session.turns)
                for number, turn in enumerate(session.turns):
                    if groups.add(session, number, turn):
                        file.write_table(groups.table())
            if not seen:
                raise WorkloadError(f"{path}: no session to write; check that the recording holds a model turn")
            if groups.rows:
                file.write_table(groups.table())
            header = Header(
                version=VERSION,
                tokenizer_hash=tokenizer_hash,
                vocab_size=vocab_size,
                content_hash=content.hexdigest(),
                sessions=len(seen),
                turns=turns,
                split=split,
            )
            file.add_key_value_metadata({_FOOTER: json.dumps(asdict(header)).encode()})
    except (OSError, pa.ArrowException) as error:
        raise WorkloadError(f"{path}: can't be written ({error}); free some space or name another place") from error


def header(path: Path) -> Header:
    """Return what the file says of itself, without reading its sessions.

    Raises:
        WorkloadError: no session file there, or one of another version.
    """
    with _opened(path) as file:
        return _header(path, file)


def read(path: Path) -> Iterator[Session]:
    """Yield the sessions as they are read. The content's hash can be checked only after the last one.

    Raises:
        WorkloadError: missing, empty, not Parquet, another version, damaged, no sessions, an empty output, an id
            outside the vocabulary; the message names the file and, where there is one, the row (the first is 0).
    """
    with _opened(path) as file:
        says = _header(path, file)
        content = ContentHash()
        for session in _sessions(path, file, says.vocab_size):
            content.add(session)
            yield session
    if content.sessions == 0:
        raise WorkloadError(f"{path}: holds no sessions; write it again with `prepare`")
    if content.hexdigest() != says.content_hash:
        raise WorkloadError(f"{path}: the content does not match its hash, so it was changed; write it again")


@contextlib.contextmanager
def _opened(path: Path) -> "Iterator[pq.ParquetFile]":
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise WorkloadError(f"{path}: no such file; check workload.path or write it with `prepare`")
    if path.stat().st_size == 0:
        raise WorkloadError(f"{path}: the file is empty; write it again with `prepare`")
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise WorkloadError(f"{path}: not a whole Parquet file ({reason}); write it again with `prepare`") from error


def _header(path: Path, file: "pq.ParquetFile") -> Header:
    footer = (file.metadata.metadata or {}).get(_FOOTER)
    if footer is None:
        raise WorkloadError(f"{path}: Parquet, but no session file; name one that `prepare` wrote")
    row = json.loads(footer)
    version = row.get("version")
    if version not in (1, VERSION):
        raise WorkloadError(
            f"{path}: session file version {version}, this program reads version {VERSION} and before;"
            " write it again with `prepare`"
        )
    if not file.schema_arrow.equals(_schema(version)):
        raise WorkloadError(f"{path}: its columns are not those of a session file; write it again with `prepare`")
    return Header(**row)


def _sessions(path: Path, file: "pq.ParquetFile", vocab_size: int) -> Iterator[Session]:
    first: dict[str, Any] = {}
    turns: list[Turn] = []
    held = 0
    for number, row in enumerate(_rows(file)):
        place = f"{path}: row {number}"
        if row["turn"] == 0 and turns:
            yield _session(first, turns)
            turns = []
        if row["turn"] != len(turns) or (turns and row["session_id"] != first["session_id"]):
            raise WorkloadError(f"{place}: turn {row['turn']} of {row['session_id']} is out of order; write it again")
        if not turns:
            first = row
        turn = Turn(
            kind=row["kind"],
            delta_ids=tuple(row["delta_ids"]),
            output_ids=tuple(row["output_ids"]),
            tool_wait_s=row["tool_wait_s"],
            kept_ids=row.get("kept_ids"),
        )
        _check_turn(turn, vocab_size, place)
        held = _held(turn, held if turns else 0, place)
        turns.append(turn)
    if turns:
        yield _session(first, turns)


def _session(first: dict[str, Any], turns: list[Turn]) -> Session:
    return Session(
        session_id=first["session_id"], source=first["source"], task_id=first["task_id"], turns=tuple(turns)
    )


def _rows(file: "pq.ParquetFile") -> Iterator[dict[str, Any]]:
    for batch in file.iter_batches(batch_size=_ROWS_A_READ):
        yield from batch.to_pylist()


def _check(session: Session, vocab_size: int, path: str) -> None:
    if not session.turns:
        raise WorkloadError(f"{path}: session {session.session_id} has no turns; leave it out")
    held = 0
    for number, turn in enumerate(session.turns):
        place = f"{path}: turn {number} of session {session.session_id}"
        _check_turn(turn, vocab_size, place)
        held = _held(turn, held, place)


def _held(turn: Turn, before: int, place: str) -> int:
    """How many ids the turn's prompt and output hold, after so many of the turn before."""
    kept = before if turn.kept_ids is None else turn.kept_ids
    if not 0 <= kept <= before:
        raise WorkloadError(f"{place}: keeps {kept} of the {before} tokens before it; render it again")
    return kept + len(turn.delta_ids) + len(turn.output_ids)


def _check_turn(turn: Turn, vocab_size: int, place: str) -> None:
    if turn.kind not in TURN_KINDS:
        raise WorkloadError(f"{place}: unknown kind {turn.kind!r}; known are {', '.join(TURN_KINDS)}")
    if not turn.output_ids:
        raise WorkloadError(f"{place}: the output is empty, and a turn without output has nothing to replay; drop it")
    for ids in (turn.delta_ids, turn.output_ids):
        if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
            wrong = next(one for one in ids if not 0 <= one < vocab_size)
            raise WorkloadError(
                f"{place}: token id {wrong} is outside the vocabulary of {vocab_size}; render it again"
            )
    if turn.tool_wait_s is not None and not (math.isfinite(turn.tool_wait_s) and turn.tool_wait_s >= 0):
        raise WorkloadError(
            f"{place}: a wait of {turn.tool_wait_s} s is none; leave it out (null) if it is not known"
        )


class _Groups:
    """Rows that wait for their row group to fill up."""

    def __init__(self, schema: "pa.Schema") -> None:
        self._schema = schema
        self._ids = 0
        self.rows: list[dict[str, Any]] = []

    def add(self, session: Session, number: int, turn: Turn) -> bool:
        """Add a turn; whether the group is full now."""
        self.rows.append(
            {
                "session_id": session.session_id,
                "source": session.source,
                "task_id": session.task_id,
                "turn": number,
                "kind": turn.kind,
                "tool_wait_s": turn.tool_wait_s,
                "delta_ids": turn.delta_ids,
                "output_ids": turn.output_ids,
                "kept_ids": turn.kept_ids,
            }
        )
        self._ids += len(turn.delta_ids) + len(turn.output_ids)
        return len(self.rows) >= _ROWS_A_GROUP or self._ids >= _IDS_A_GROUP

    def table(self) -> "pa.Table":
        """Return the waiting rows and forget them."""
        import pyarrow as pa

        columns = [
            _id_lists([row[field.name] for row in self.rows])
            if pa.types.is_list(field.type)
            else pa.array([row[field.name] for row in self.rows], field.type)
            for field in self._schema
        ]
        self.rows, self._ids = [], 0
        return pa.table(columns, schema=self._schema)


def _id_lists(lists: list[tuple[int, ...]]) -> "pa.Array":
    """What ``pa.array`` makes of the lists, without its look at every id: that took most of the time of writing."""
    import numpy as np
    import pyarrow as pa

    flat = np.fromiter(chain.from_iterable(lists), np.uint32, count=sum(map(len, lists)))
    offsets = np.cumsum([0, *map(len, lists)], dtype=np.int32)
    return pa.ListArray.from_arrays(offsets, flat)


def _schema(version: int = VERSION) -> "pa.Schema":
    import pyarrow as pa

    ids = pa.list_(pa.uint32())
    fields = [
        pa.field("session_id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("task_id", pa.string()),
        pa.field("turn", pa.uint32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("tool_wait_s", pa.float64()),
        pa.field("delta_ids", ids, nullable=False),
        pa.field("output_ids", ids, nullable=False),
        pa.field("kept_ids", pa.uint32()),
    ]
    return pa.schema(fields[:-1] if version == 1 else fields)


@contextlib.contextmanager
def _appears_when_complete(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside ``path`` that takes its place when the block ends well, else goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
