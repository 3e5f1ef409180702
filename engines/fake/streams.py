"""What the fake engine sends: a stream's parts, and when each is due."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from engines.fake.wires import Wire

Ending = Literal[
    "end",  # as HTTP wants it
    "close",  # connection closed without the terminating chunk
    "reset",  # TCP reset
    "stall",  # silence
    "die",  # the process exits at once
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Bytes that leave in one piece."""

    data: bytes
    due_s: float
    """Seconds after the request's arrival."""
    ids: tuple[int, ...] = ()
    """The tokens that are whole with this part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One answer. ``tail`` follows ``parts``: finish, usage and ``[DONE]``, one event each."""

    parts: tuple[Part, ...]
    tail: tuple[dict[str, Any] | bytes | float, ...] = ()
    """JSON events, raw bytes, or a pause in seconds; the server puts what it measured into the timings."""
    ending: Ending = "end"
    status: int | None = 200
    """None: the connection ends before an answer begins."""
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "text/event-stream"),)
    body: bytes | None = None
    """The whole answer of a server that does not stream."""
    encode: Callable[[bytes], bytes] = bytes
    """Applied to each piece before it leaves."""


Shape = Callable[[Stream, Wire], Stream]
"""Turns the faultless answer on a wire into one of another shape."""


def stream(wire: Wire, ids: Sequence[int], *, first_due_s: float, decode_s: float) -> Stream:
    """The faultless answer: one token a chunk, token ``k`` due at ``first_due_s + k decode_s``."""
    parts = tuple(
        Part(data=event(wire.tokens([token], k + 1)), due_s=first_due_s + k * decode_s, ids=(token,))
        for k, token in enumerate(ids)
    )
    return Stream(parts=parts, tail=wire.tail(len(ids)))


def event(payload: Any, *, name: str | None = None) -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + orjson.dumps(payload) + b"\n\n"
