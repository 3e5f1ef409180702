"""The fake engine's faults: the turn fails, and a client must say how."""

import gzip
from dataclasses import replace
from typing import Any

import orjson

from engines.fake.shapes import retold
from engines.fake.streams import Ending, Part, Shape, Stream, event
from engines.fake.wires import DONE, Wire

_ERROR = {"error": {"message": "expert 17 caught fire", "type": "server_error"}}
_CONTEXT = {"error": {"message": "the prompt exceeds the context of 16 tokens", "type": "invalid_request_error"}}


def _half(plain: Stream, *more: bytes, ending: Ending = "end") -> Stream:
    """The first half of the tokens, then ``more``, then ``ending``; no finish."""
    kept = plain.parts[: len(plain.parts) // 2]
    due_s = plain.parts[len(kept)].due_s
    extra = tuple(Part(data=data, due_s=due_s) for data in more)
    return replace(plain, parts=kept + extra, tail=(), ending=ending)


def _json(status: int, payload: Any) -> Shape:
    headers = (("Content-Type", "application/json"),)
    return lambda plain, _: replace(plain, status=status, headers=headers, body=orjson.dumps(payload))


def _wrong_token(plain: Stream, wire: Wire) -> Stream:
    middle = len(plain.parts) // 2
    wrong = replace(plain.parts[middle], ids=tuple(id_ + 1 for id_ in plain.parts[middle].ids))
    return retold(replace(plain, parts=(*plain.parts[:middle], wrong, *plain.parts[middle + 1 :])), wire)


def _gzip(plain: Stream, _: Wire) -> Stream:
    """Each piece a gzip member of its own, as a flushing proxy would send it."""
    return replace(plain, headers=(*plain.headers, ("Content-Encoding", "gzip")), encode=gzip.compress)


def _abort(plain: Stream, wire: Wire) -> Stream:
    return replace(plain, tail=(wire.finish(len(plain.parts), "abort"), *plain.tail[1:]))


def _nothing(ending: Ending) -> Shape:
    return lambda plain, _: replace(plain, parts=(), tail=(), ending=ending, status=None)


FAULTS: dict[str, Shape] = {
    "http_500": _json(500, _ERROR),
    "http_503": _json(503, {"error": {"message": "too many requests wait", "type": "queue_full"}}),
    "context": _json(400, _CONTEXT),
    "json_answer": _json(200, _ERROR),
    "error_event": lambda plain, _: _half(plain, event(_ERROR, name="error"), DONE),
    "error_data": lambda plain, _: _half(plain, event(_ERROR), DONE),
    "error_then_reset": lambda plain, _: _half(plain, event(_ERROR), ending="reset"),
    "not_json": lambda plain, _: _half(plain, b"data: {broken\n\n", DONE),
    "not_utf8": lambda plain, _: _half(plain, b"data: \xff\n\n"),
    "gzip": _gzip,
    "zero_tokens": lambda plain, wire: replace(plain, parts=(), tail=wire.tail(0)),
    "wrong_token": _wrong_token,
    "fewer_tokens": lambda plain, wire: replace(plain, parts=plain.parts[:-1], tail=wire.tail(len(plain.parts) - 1)),
    "no_finish": lambda plain, _: replace(plain, tail=(DONE,)),
    "cut": lambda plain, _: _half(plain, ending="close"),
    "cut_inside_event": lambda plain, _: _half(plain, plain.parts[-1].data[:30]),
    "reset": lambda plain, _: _half(plain, ending="reset"),
    "close_early": _nothing("close"),
    "reset_early": _nothing("reset"),
    "stall": lambda plain, _: _half(plain, ending="stall"),
    "stall_early": _nothing("stall"),
    "die": lambda plain, _: _half(plain, ending="die"),
}
"""What no client may count as an answer."""

OPENAI_FAULTS: dict[str, Shape] = {"abort": _abort}
