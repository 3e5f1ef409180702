"""Server-sent events out of stamped socket reads."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from engines.base import EngineError, Event

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


def parse(reads: Sequence[tuple[int, bytes]]) -> list[Event]:
    """Every event of a finished stream, in order, as the WHATWG standard reads it (html.spec.whatwg.org, 9.2.6).

    Two departures, so that nothing a server said is lost: an event that the stream's end left without its blank line
    is given all the same, and so is an ``event: error`` without data.

    Args:
        reads: ``(t_ns, bytes)`` of each read, in order; an event may begin and end anywhere in them.

    Returns:
        Events with the ``t_ns`` of the read that completed them: the one that held the first byte of the blank line's
        end (a CR ends a line whether or not an LF follows), or the last read where the blank line is missing.

    Raises:
        EngineError: ``protocol`` when the bytes are not UTF-8.
    """
    events: list[Event] = []
    name, data = "", list[bytes]()
    for line, t_ns in _lines(reads):
        if line:
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value.decode()
            continue
        if data or name == "error":
            events.append(Event(data=b"\n".join(data).decode(), t_ns=t_ns, name=name or "message"))
        name, data = "", []
    return events


def _lines(reads: Sequence[tuple[int, bytes]]) -> Iterator[tuple[bytes, int]]:
    """Yield each line and the stamp of the read that ended it, then a blank one that ends the last event."""
    stream = b"".join(data for _, data in reads)
    try:
        stream.decode()
    except UnicodeDecodeError as error:
        message = f"byte {error.start} of the stream is not UTF-8, so it is no event stream; check engine.url"
        raise EngineError(message, kind="protocol") from error
    read_ends = list(accumulate(len(data) for _, data in reads))
    start = len(_BOM) if stream.startswith(_BOM) else 0
    for end in _LINE_END.finditer(stream, start):
        yield stream[start : end.start()], reads[bisect_right(read_ends, end.start())][0]
        start = end.end()
    if reads:
        last_ns = reads[-1][0]
        if start < len(stream):
            yield stream[start:], last_ns
        yield b"", last_ns
