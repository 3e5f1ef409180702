"""Session files keep every field, refuse what is wrong by file and row, and appear whole or not at all."""

import dataclasses
import json
import resource
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workloads import store
from workloads.session import TURN_KINDS, Session, Turn, WorkloadError

VOCAB = 5000
TURN = Turn(kind="first", delta_ids=(1, 2), output_ids=(3,))
SESSION = Session(session_id="a", source="sample", turns=(TURN,))

ids = st.lists(st.integers(0, VOCAB - 1), max_size=12).map(tuple)
turns = st.builds(
    Turn,
    kind=st.sampled_from(TURN_KINDS),
    delta_ids=ids,
    output_ids=ids.filter(len),
    tool_wait_s=st.none() | st.floats(0, 1e9),
    kept_ids=st.none() | st.just(0),  # what any turn can keep, the first one too
)
some_sessions = st.lists(
    st.builds(
        Session,
        session_id=st.text(max_size=8),
        source=st.text(max_size=8),
        turns=st.lists(turns, min_size=1, max_size=6).map(tuple),
        task_id=st.none() | st.text(max_size=8),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda session: session.session_id,
)


def write(path: Path, *sessions: Session) -> None:
    store.write(path, sessions, tokenizer_hash="t", vocab_size=VOCAB)


def changed(**fields: object) -> Session:
    return dataclasses.replace(SESSION, turns=(dataclasses.replace(TURN, **fields),))  # type: ignore[arg-type]


def rewrite(path: Path, *, header: dict[str, object] | None = None, **columns: list[object]) -> None:
    """Change columns or the footer of a session file and leave the rest as it is."""
    table = pq.read_table(path)
    footer = dict(pq.read_metadata(path).metadata)
    for name, values in columns.items():
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.schema.field(index), pa.array(values, table.schema.field(index).type))
    if header is not None:
        (key,) = [key for key in footer if b"sessions" in key]
        footer[key] = json.dumps(json.loads(footer[key]) | header).encode()
    with pq.ParquetWriter(path, table.schema) as file:
        file.write_table(table)
        file.add_key_value_metadata(footer)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sessions=some_sessions)
def test_what_is_written_is_read_back(tmp_path: Path, sessions: list[Session]) -> None:
    path = tmp_path / "sessions.parquet"
    write(path, *sessions)
    assert list(store.read(path)) == sessions
    header = store.header(path)
    assert header.content_hash == store.content_hash(sessions)
    assert (header.sessions, header.turns) == (len(sessions), sum(len(session.turns) for session in sessions))
    assert (header.tokenizer_hash, header.vocab_size) == ("t", VOCAB)


@settings(deadline=None, max_examples=30)
@given(sessions=some_sessions)
def test_the_hash_tells_order_and_every_field_apart(sessions: list[Session]) -> None:
    whole = store.content_hash(sessions)
    if len(sessions) > 1:
        assert store.content_hash(sessions[::-1]) != whole
    first = sessions[0]
    turn = first.turns[0]
    others = [
        dataclasses.replace(first, session_id=first.session_id + "x"),
        dataclasses.replace(first, task_id="" if first.task_id is None else None),
        *(
            dataclasses.replace(first, turns=(one, *first.turns[1:]))
            for one in (
                dataclasses.replace(turn, tool_wait_s=0.0 if turn.tool_wait_s is None else None),
                dataclasses.replace(turn, kind="tool" if turn.kind == "user" else "user"),
                dataclasses.replace(turn, kept_ids=0 if turn.kept_ids is None else None),
                # The same ids in the same order, with the seam elsewhere.
                dataclasses.replace(
                    turn, delta_ids=turn.delta_ids + turn.output_ids[:1], output_ids=turn.output_ids[1:]
                ),
            )
        ),
    ]
    assert whole not in {store.content_hash([other, *sessions[1:]]) for other in others}


def test_the_hash_does_not_depend_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sessions.parquet"
    write(path, SESSION, dataclasses.replace(SESSION, session_id="b"))
    before = store.content_hash(store.read(path))
    rewrite(path)  # other row groups, other compression
    assert store.content_hash(store.read(path)) == before


def test_a_long_file_is_written_and_read_in_little_memory(tmp_path: Path) -> None:
    turns = tuple(Turn(kind="tool", delta_ids=tuple(range(2000)), output_ids=(1,)) for _ in range(50))

    def many() -> Iterator[Session]:
        for number in range(12):  # 1.2 million ids: over 40 MB as Python integers if all were held
            yield Session(session_id=str(number), source="made", turns=turns)

    path = tmp_path / "sessions.parquet"
    store.content_hash([])
    tracemalloc.start()
    try:
        store.write(path, many(), tokenizer_hash="t", vocab_size=VOCAB)
        assert sum(len(session.turns) for session in store.read(path)) == 600
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20e6
    assert pq.read_metadata(path).num_row_groups > 3


@pytest.mark.parametrize(
    ("session", "says"),
    [
        (changed(output_ids=()), r"turn 0 of session a: the output is empty"),
        (changed(delta_ids=(1, VOCAB)), r"token id 5000 is outside the vocabulary of 5000"),
        (changed(delta_ids=(-1,)), r"token id -1 is outside the vocabulary"),
        (changed(kind="system"), r"unknown kind 'system'; known are first, tool, user"),
        (changed(tool_wait_s=-1.0), r"a wait of -1.0 s is none"),
        (changed(tool_wait_s=float("nan")), r"a wait of nan s is none"),
        (dataclasses.replace(SESSION, turns=()), r"session a has no turns"),
        (SESSION, r"two sessions are called a"),
    ],
)
def test_a_wrong_session_is_refused_and_nothing_is_left_behind(tmp_path: Path, session: Session, says: str) -> None:
    path = tmp_path / "sessions.parquet"
    with pytest.raises(WorkloadError, match=says):
        write(path, SESSION, session)
    assert list(tmp_path.iterdir()) == []


def test_no_session_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="no session to write"):
        write(tmp_path / "sessions.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_recording_that_breaks_off_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "sessions.parquet"
    write(path, SESSION)

    def broken() -> Iterator[Session]:
        yield SESSION
        raise WorkloadError("line 7 is no JSON")

    with pytest.raises(WorkloadError, match="line 7"):
        store.write(path, broken(), tokenizer_hash="t", vocab_size=VOCAB)
    assert list(store.read(path)) == [SESSION]
    assert [found.name for found in tmp_path.iterdir()] == ["sessions.parquet"]


def test_a_disk_that_takes_no_more_leaves_no_half_file(tmp_path: Path) -> None:
    path = tmp_path / "sessions.parquet"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, limits[1]))
    try:
        with pytest.raises(WorkloadError, match=r"sessions\.parquet: can't be written .*free some space"):
            write(path, SESSION)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkloadError, match="can't be written"):
        write(tmp_path / "file" / "sessions.parquet", SESSION)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"none\.parquet: no such file"):
        list(store.read(tmp_path / "none.parquet"))


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "the file is empty"), (b"a text\n" * 9, "not a whole Parquet file")]
)
def test_a_file_that_is_no_parquet_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "sessions.parquet"
    path.write_bytes(content)
    with pytest.raises(WorkloadError, match=rf"sessions\.parquet: {says}"):
        list(store.read(path))


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sessions.parquet"
    write(path, SESSION)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(WorkloadError, match="not a whole Parquet file"):
        list(store.read(path))


def test_damage_inside_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sessions.parquet"
    write(path, SESSION)
    data = bytearray(path.read_bytes())
    data[4:60] = b"\xff" * 56
    path.write_bytes(data)
    with pytest.raises(WorkloadError, match="not a whole Parquet file"):
        list(store.read(path))


def test_another_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(WorkloadError, match="Parquet, but no session file"):
        list(store.read(path))


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sessions.parquet"
    write(path, SESSION)
    rewrite(path, header={"version": 99})
    with pytest.raises(WorkloadError, match="version 99, this program reads version 2 and before"):
        store.header(path)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"output_ids": [[3], []]}, "row 1: the output is empty"),
        ({"delta_ids": [[1, 2], [VOCAB]]}, "row 1: token id 5000 is outside the vocabulary of 5000"),
        ({"kind": ["first", "assistant"]}, "row 1: unknown kind 'assistant'"),
        ({"turn": [0, 2]}, "row 1: turn 2 of b is out of order"),
        ({"turn": [1, 0]}, "row 0: turn 1 of a is out of order"),
        ({"turn": [0, 1]}, "row 1: turn 1 of b is out of order"),
        ({"tool_wait_s": [None, -3.0]}, "row 1: a wait of -3.0 s is none"),
        ({"delta_ids": [[1, 2], [2, 1]]}, "does not match its hash"),
    ],
)
def test_a_changed_file_is_refused_by_its_row(tmp_path: Path, columns: dict[str, list[object]], says: str) -> None:
    path = tmp_path / "sessions.parquet"
    write(path, SESSION, dataclasses.replace(SESSION, session_id="b"))
    rewrite(path, **columns)
    with pytest.raises(WorkloadError, match=says):
        list(store.read(path))


def test_a_file_without_sessions_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sessions.parquet"
    write(path, SESSION)
    footer = pq.read_metadata(path).metadata
    empty = pq.read_table(path).slice(0, 0)
    with pq.ParquetWriter(path, empty.schema) as file:
        file.add_key_value_metadata(footer)
    with pytest.raises(WorkloadError, match="holds no sessions"):
        list(store.read(path))


REWRITTEN = dataclasses.replace(SESSION, turns=(TURN, dataclasses.replace(TURN, kind="tool", kept_ids=2)))


def test_a_rewritten_prompt_keeps_so_many_ids_of_the_turn_before(tmp_path: Path) -> None:
    path = tmp_path / "sessions.parquet"
    write(path, REWRITTEN)
    (session,) = store.read(path)
    assert session == REWRITTEN
    assert list(session.prompts()) == [(1, 2), (1, 2, 1, 2)]
    assert session.longest_context == 5


def test_history_may_shrink() -> None:
    shrunk = dataclasses.replace(SESSION, turns=(TURN, dataclasses.replace(TURN, delta_ids=(), kept_ids=1)))
    assert list(shrunk.prompts()) == [(1, 2), (1,)]
    assert shrunk.longest_context == 3


@pytest.mark.parametrize("kept", [4, -1])
def test_a_turn_can_only_keep_what_is_there(tmp_path: Path, kept: int) -> None:
    turns = (TURN, dataclasses.replace(TURN, kept_ids=kept))
    with pytest.raises(WorkloadError, match=rf"turn 1 of session a: keeps {kept} of the 3 tokens before it"):
        write(tmp_path / "sessions.parquet", dataclasses.replace(SESSION, turns=turns))
    path = tmp_path / "other.parquet"
    write(path, REWRITTEN)
    if kept > 0:
        rewrite(path, kept_ids=[None, kept])
        with pytest.raises(WorkloadError, match=rf"row 1: keeps {kept} of the 3 tokens before it; render it again"):
            list(store.read(path))


def test_a_file_of_version_1_is_read_and_keeps_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "sessions.parquet"
    write(path, SESSION)
    rewrite(path, header={"version": 1})
    table = pq.read_table(path).drop_columns(["kept_ids"])
    footer = dict(pq.read_metadata(path).metadata)
    with pq.ParquetWriter(path, table.schema) as file:
        file.write_table(table)
        file.add_key_value_metadata({key: value for key, value in footer.items() if b"sessions" in key})
    assert list(store.read(path)) == [SESSION]
    # What version 1 of this program wrote for this session.
    assert store.header(path).content_hash == "49782dfad1cadb52ae3211d8eb0ac8e27476dfc9319a2fb334bb40127f451914"
