"""Any legal event stream, split anywhere, gives the same events."""

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engines import sse
from engines.base import EngineError

LEGAL = (
    b"\xef\xbb\xbf: hello\n\nevent: ping\n\n"
    + 'data: {"a": "é✓😀"}\r\n\r\n'.encode()
    + b"id: 7\rretry: 10\rdata:no space\r\rdata\n\n"
    + b"event: error\ndata:  two spaces\nunknown: field\n\n"
    + b"data: one\ndata:\ndata: three\r\n\n"
    + b": a comment\ndata: last"
)
LEGAL_EVENTS = [
    ("message", '{"a": "é✓😀"}'),
    ("message", "no space"),
    ("message", ""),
    ("error", " two spaces"),
    ("message", "one\n\nthree"),
    ("message", "last"),
]


def named(reads: list[tuple[int, bytes]]) -> list[tuple[str, str]]:
    return [(event.name, event.data) for event in sse.parse(reads)]


def chunked(data: bytes, cuts: list[int]) -> list[tuple[int, bytes]]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [(k, data[start:end]) for k, (start, end) in enumerate(pairwise(edges))]


def test_every_field_line_end_and_comment_of_the_standard_is_read() -> None:
    assert named([(0, LEGAL)]) == LEGAL_EVENTS


@given(st.lists(st.integers(0, len(LEGAL)), max_size=40))
@example(list(range(len(LEGAL))))
def test_any_chunking_gives_the_same_events(cuts: list[int]) -> None:
    assert named(chunked(LEGAL, cuts)) == LEGAL_EVENTS


@given(
    st.lists(st.sampled_from([b"data", b":", b" x", b"\r", b"\n", b"event:error", b"\xc3\xa9"]), max_size=30),
    st.data(),
)
def test_any_chunking_of_any_text_gives_the_same_events(pieces: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(pieces)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    assert named(chunked(stream, cuts)) == named([(0, stream)])


@given(st.lists(st.binary(max_size=60), max_size=10))
def test_random_bytes_raise_nothing_but_engine_error(parts: list[bytes]) -> None:
    with suppress(EngineError):
        sse.parse(list(enumerate(parts)))


def test_an_event_is_stamped_with_the_read_that_completed_it() -> None:
    reads = [
        (10, b"data: a\n"),
        (20, b"\ndata: b\r\n\r"),
        (30, b"\ndata: c\n\nda"),
        (40, b"ta: d\n\n"),
        (50, b"data: e"),
    ]
    assert [(event.data, event.t_ns) for event in sse.parse(reads)] == [
        ("a", 20),
        ("b", 20),  # its CR ended the blank line; the LF that came later belongs to it
        ("c", 30),
        ("d", 40),
        ("e", 50),
    ]


def test_several_events_of_one_read_share_its_stamp() -> None:
    assert [event.t_ns for event in sse.parse([(5, b"data: a\n\ndata: b\n\ndata: c\n\n")])] == [5, 5, 5]


def test_an_error_event_without_data_is_not_lost() -> None:
    assert named([(0, b"event: error\n\n")]) == [("error", "")]


def test_a_name_is_forgotten_after_an_event_without_data() -> None:
    assert named([(0, b"event: ping\n\ndata: x\n\n")]) == [("message", "x")]


def test_bytes_that_are_not_utf8_name_their_place() -> None:
    with pytest.raises(EngineError, match="byte 7 of the stream is not UTF-8") as raised:
        sse.parse([(0, b"data: a"), (1, b"\xff\n\n")])
    assert raised.value.kind == "protocol"


def test_an_empty_stream_has_no_events() -> None:
    assert sse.parse([]) == []
    assert sse.parse([(0, b"")]) == []
