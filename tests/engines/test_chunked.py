"""Chunked framing comes off as h11 takes it off, however the wire is split."""

from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.chunked import Chunked, one_chunk


def fed(wire: bytes, cuts: list[int]) -> tuple[bytes, Chunked]:
    chunked = Chunked()
    edges = [0, *sorted(cuts), len(wire)]
    return b"".join(chunked.feed(wire[start:end]) for start, end in pairwise(edges)), chunked


def by_h11(wire: bytes) -> bytes:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "engine")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + wire)
    body = b""
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        if isinstance(event, h11.Data):
            body += event.data
    return body


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.data())
def test_any_body_in_any_chunks_and_reads_is_what_h11_reads(parts: list[bytes], data: st.DataObject) -> None:
    extension = data.draw(st.sampled_from([b"", b";name=value", b" "]))
    trailers = data.draw(st.sampled_from([b"", b"Server-Timing: 5\r\n"]))
    wire = (
        b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts) + b"0\r\n" + trailers + b"\r\n"
    )
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=12))
    body, chunked = fed(wire, cuts)
    assert body == b"".join(parts) == by_h11(wire)
    assert chunked.ended


@given(st.binary(max_size=200))
def test_one_chunk_comes_back(body: bytes) -> None:
    assert by_h11(one_chunk(body)) == body


def test_it_has_not_ended_before_the_last_byte() -> None:
    wire = b"3\r\nabc\r\n0\r\n\r\n"
    for length in range(len(wire)):
        assert not fed(wire[:length], [])[1].ended


def test_bytes_beyond_the_end_are_kept_apart() -> None:
    body, chunked = fed(b"1\r\na\r\n0\r\n\r\nHTTP/1.1", [])
    assert body == b"a"
    assert chunked.left_over == b"HTTP/1.1"


@pytest.mark.parametrize("wire", [b"xyz\r\n", b"-1\r\n", b"0x5\r\n", b"\r\n", b"1\r\nab\r\n", b"f" * 16 + b"\r\n"])
def test_illegal_framing_is_refused(wire: bytes) -> None:
    with pytest.raises(ValueError, match="chunk"):
        fed(wire, [])


def test_an_endless_size_line_is_refused() -> None:
    with pytest.raises(ValueError, match="without an end"):
        fed(b"1" * 20_000, list(range(0, 20_000, 1000)))
