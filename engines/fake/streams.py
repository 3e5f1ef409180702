"""What the fake engine sends: a stream's parts and when each is due, for each legal shape and fault by name."""

import gzip
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

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
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One answer. ``tail`` follows ``parts``: finish, usage and ``[DONE]``, one event each."""

    parts: tuple[Part, ...]
    tail: tuple[dict[str, Any] | bytes, ...] = ()
    """JSON events or raw bytes; the server puts what it measured into the usage event's timings."""
    tail_pause_s: float = 0.0
    """Between the finish and what follows it."""
    ending: Ending = "end"
    status: int | None = 200
    """None: the connection ends before an answer begins."""
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "text/event-stream"),)
    body: bytes | None = None
    """The whole answer of a server that does not stream."""
    encode: Callable[[bytes], bytes] = bytes
    """Applied to each piece before it leaves."""


def stream(
    ids: Sequence[int], *, name: str, first_due_s: float, decode_s: float, prompt_tokens: int, cached_tokens: int
) -> Stream:
    """The faultless answer: one token a chunk, token ``k`` due at ``first_due_s + k decode_s``."""

    def chunk(**fields: Any) -> dict[str, Any]:
        return {"id": name, "object": "text_completion", "created": 0, "model": "fake", **fields}

    parts = tuple(
        Part(data=event(chunk(choices=[_choice([token])])), due_s=first_due_s + k * decode_s, tokens=1)
        for k, token in enumerate(ids)
    )
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(ids),
        "total_tokens": prompt_tokens + len(ids),
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
    timings = {"cached_n": cached_tokens, "prompt_n": prompt_tokens - cached_tokens, "predicted_n": len(ids)}
    finish = chunk(choices=[_choice([], finish_reason="length")])
    return Stream(parts=parts, tail=(finish, chunk(choices=[], usage=usage, timings=timings), DONE))


def event(payload: Any, *, name: str | None = None) -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + orjson.dumps(payload) + b"\n\n"


DONE = b"data: [DONE]\n\n"
_ERROR = {"error": {"message": "expert 17 caught fire", "type": "server_error"}}
_CONTEXT = {"error": {"message": "the prompt exceeds the context of 16 tokens", "type": "invalid_request_error"}}


def _choice(ids: Sequence[int], *, text: str | None = None, finish_reason: str | None = None) -> dict[str, Any]:
    shown = "".join(f" {token}" for token in ids) if text is None else text
    return {"index": 0, "text": shown, "token_ids": list(ids), "finish_reason": finish_reason}


def _extra(payload: Any, at: Part) -> Part:
    return Part(data=event(payload), due_s=at.due_s)


# Legal shapes: every token is there, in order; a client must read them all alike.


def _bundles(plain: Stream, size: int = 3) -> Stream:
    """Several tokens a chunk, sent when the last of them is ready."""
    parts = []
    for start in range(0, len(plain.parts), size):
        together = plain.parts[start : start + size]
        ids = [token for part in together for token in ids_of(part)]
        parts.append(Part(data=event({"choices": [_choice(ids)]}), due_s=together[-1].due_s, tokens=len(ids)))
    return replace(plain, parts=tuple(parts))


def _empties(plain: Stream) -> Stream:
    """A role, a null usage and empty texts before, between and after the tokens."""
    role = {"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]}
    empty = {"choices": [_choice([])]}
    nothing: dict[str, Any] = {"choices": [], "usage": None}
    start = Part(data=event(role) + event(nothing), due_s=0.0)
    between = [piece for part in plain.parts for piece in (part, _extra(empty, part))]
    return replace(plain, parts=(start, *between))


def _pings(plain: Stream) -> Stream:
    """Comments, a named event without data, ids and retry times."""
    start = Part(data=b": hello\n\n: processing\nretry: 500\n\nevent: ping\n\n", due_s=0.0)
    between = [replace(part, data=b": ping\n\nid: 7\n" + part.data) for part in plain.parts]
    return replace(plain, parts=(start, *between))


def _line_ends(end: bytes) -> Callable[[Stream], Stream]:
    return lambda plain: replace(plain, encode=lambda data: data.replace(b"\n", end))


def _bom(plain: Stream) -> Stream:
    return replace(plain, parts=(Part(data=b"\xef\xbb\xbf", due_s=0.0), *plain.parts))


def _split(plain: Stream) -> Stream:
    """Each event in three pieces, cut anywhere, inside a character too; it is whole with the last one."""
    rng = random.Random(len(plain.parts))
    parts = []
    for part in plain.parts:
        data = part.data.replace(b'"text":" ', '"text":"é✓ '.encode())
        first, second = sorted(rng.sample(range(1, len(data)), 2))
        pieces = data[:first], data[first:second], data[second:]
        parts += [replace(part, data=piece, tokens=0) for piece in pieces[:2]]
        parts.append(replace(part, data=pieces[2]))
    return replace(plain, parts=tuple(parts))


def _multi_line(plain: Stream) -> Stream:
    """JSON over several ``data:`` lines."""
    spread = [replace(part, data=part.data.replace(b',"choices"', b',\ndata: "choices"')) for part in plain.parts]
    return replace(plain, parts=tuple(spread))


def _burst(plain: Stream) -> Stream:
    """Everything at once, when the last token is ready."""
    last = plain.parts[-1]
    whole = Part(data=b"".join(part.data for part in plain.parts), due_s=last.due_s, tokens=len(plain.parts))
    return replace(plain, parts=(whole,))


def _usage_first(plain: Stream) -> Stream:
    finish, usage, done = plain.tail
    return replace(plain, tail=(usage, finish, done))


def _unterminated(plain: Stream) -> Stream:
    """The last event lacks its blank line."""
    return replace(plain, tail=(*plain.tail[:2], DONE.rstrip()))


SHAPES: dict[str, Callable[[Stream], Stream]] = {
    "plain": lambda plain: plain,
    "bundles": _bundles,
    "empties": _empties,
    "pings": _pings,
    "crlf": _line_ends(b"\r\n"),
    "cr": _line_ends(b"\r"),
    "bom": _bom,
    "split": _split,
    "multi_line": _multi_line,
    "burst": _burst,
    "usage_first": _usage_first,
    "late_usage": lambda plain: replace(plain, tail_pause_s=0.05),
    "no_usage": lambda plain: replace(plain, tail=(plain.tail[0], DONE)),
    "no_done": lambda plain: replace(plain, tail=plain.tail[:2]),
    "unterminated": _unterminated,
}
"""What any client must take."""


# Faults: the turn fails, and a client must say how.


def _half(plain: Stream, *more: bytes, ending: Ending = "end") -> Stream:
    """The first half of the tokens, then ``more``, then ``ending``; no finish."""
    kept = plain.parts[: len(plain.parts) // 2]
    due_s = plain.parts[len(kept)].due_s
    extra = tuple(Part(data=data, due_s=due_s) for data in more)
    return replace(plain, parts=kept + extra, tail=(), ending=ending)


def _json(status: int, payload: Any) -> Callable[[Stream], Stream]:
    headers = (("Content-Type", "application/json"),)
    return lambda plain: replace(plain, status=status, headers=headers, body=orjson.dumps(payload))


def _wrong_token(plain: Stream) -> Stream:
    middle = len(plain.parts) // 2
    (token,) = ids_of(plain.parts[middle])
    wrong = replace(plain.parts[middle], data=event({"choices": [_choice([token + 1])]}))
    return replace(plain, parts=(*plain.parts[:middle], wrong, *plain.parts[middle + 1 :]))


def _gzip(plain: Stream) -> Stream:
    """Each piece a gzip member of its own, as a flushing proxy would send it."""
    return replace(plain, headers=(*plain.headers, ("Content-Encoding", "gzip")), encode=gzip.compress)


def _abort(plain: Stream) -> Stream:
    return replace(plain, tail=(event({"choices": [_choice([], finish_reason="abort")]}), *plain.tail[1:]))


FAULTS: dict[str, Callable[[Stream], Stream]] = {
    "http_500": _json(500, _ERROR),
    "http_503": _json(503, {"error": {"message": "too many requests wait", "type": "queue_full"}}),
    "context": _json(400, _CONTEXT),
    "json_answer": _json(200, _ERROR),
    "error_event": lambda plain: _half(plain, event(_ERROR, name="error"), DONE),
    "error_data": lambda plain: _half(plain, event(_ERROR), DONE),
    "error_then_reset": lambda plain: _half(plain, event(_ERROR), ending="reset"),
    "abort": _abort,
    "not_json": lambda plain: _half(plain, b"data: {broken\n\n", DONE),
    "not_utf8": lambda plain: _half(plain, b"data: \xff\n\n"),
    "gzip": _gzip,
    "zero_tokens": lambda plain: replace(plain, parts=()),
    "wrong_token": _wrong_token,
    "fewer_tokens": lambda plain: replace(plain, parts=plain.parts[:-1]),
    "no_finish": lambda plain: replace(plain, tail=(DONE,)),
    "cut": lambda plain: _half(plain, ending="close"),
    "cut_inside_event": lambda plain: _half(plain, plain.parts[-1].data[:30]),
    "reset": lambda plain: _half(plain, ending="reset"),
    "close_early": lambda plain: replace(plain, parts=(), tail=(), ending="close", status=None),
    "reset_early": lambda plain: replace(plain, parts=(), tail=(), ending="reset", status=None),
    "stall": lambda plain: _half(plain, ending="stall"),
    "stall_early": lambda plain: replace(plain, parts=(), tail=(), ending="stall", status=None),
    "die": lambda plain: _half(plain, ending="die"),
}
"""What no client may count as an answer."""

STREAMS = SHAPES | FAULTS


def ids_of(part: Part) -> tuple[int, ...]:
    """The ids of a part that ``stream`` made."""
    payload = orjson.loads(part.data.removeprefix(b"data: "))
    return tuple(payload["choices"][0]["token_ids"])
