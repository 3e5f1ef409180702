"""One request through the proxy and what came back, as bytes."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

Headers = Sequence[tuple[bytes, bytes]]
"""Names as they were sent; `header` looks them up in any case."""

READABLE_ENCODINGS = (b"gzip", b"deflate", b"identity")
_EITHER_HEADER = 32 + zlib.MAX_WBITS
"""zlib tells a gzip from a zlib header (zlib manual, inflateInit2)."""


class Ending(Enum):
    WHOLE = "whole"
    CLIENT_LEFT = "the client left"
    SERVER_BROKE_OFF = "the server broke off"
    UNREACHABLE = "the server could not be reached"
    STOPPED = "the recording was stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """All times are seconds of one clock that never steps back."""

    target: bytes
    """Path and query; never written."""
    request_headers: Headers
    """Never written."""
    request_body: bytes
    status: int | None
    """None when no answer began."""
    response_headers: Headers
    response_body: bytes
    """What came of it; the whole only when ``ending`` says so."""
    ending: Ending
    reason: str
    """What went wrong, in words; empty when nothing did."""
    sent_s: float
    first_s: float | None
    """When the body's first bytes came back."""
    ended_s: float


def header(headers: Headers, name: bytes) -> bytes | None:
    """Return the first header of this lower-case name."""
    return next((value for key, value in headers if key.lower() == name), None)


def decoded(body: bytes, headers: Headers) -> bytes | None:
    """Return the body without its content encoding, as far as it came; None when that can't be undone."""
    encoding = (header(headers, b"content-encoding") or b"identity").strip().lower()
    if encoding in (b"identity", b""):
        return body
    if encoding not in READABLE_ENCODINGS:
        return None
    try:
        return zlib.decompressobj(_EITHER_HEADER).decompress(body)
    except zlib.error:
        return None
