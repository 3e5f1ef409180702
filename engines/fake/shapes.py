"""The fake engine's legal shapes of stream: every token is there, in order; a client must read them all alike."""

import random
from dataclasses import replace
from itertools import accumulate

from engines.fake.streams import Part, Shape, Stream, event
from engines.fake.token_wires import SgLang, Vllm
from engines.fake.wires import DONE, Chat, Completions, Wire


def retold(plain: Stream, wire: Wire) -> Stream:
    """The same tokens at the same times, as ``wire`` puts them."""
    produced = accumulate(len(part.ids) for part in plain.parts)
    parts = (
        replace(part, data=event(wire.tokens(part.ids, so_far)))
        for part, so_far in zip(plain.parts, produced, strict=True)
    )
    return replace(plain, parts=tuple(parts))


def _bundles(plain: Stream, wire: Wire, size: int = 3) -> Stream:
    """Several tokens a chunk, sent when the last of them is ready."""
    groups = [plain.parts[start : start + size] for start in range(0, len(plain.parts), size)]
    together = tuple(replace(group[-1], ids=tuple(id_ for part in group for id_ in part.ids)) for group in groups)
    return retold(replace(plain, parts=together), wire)


def _empties(plain: Stream, wire: Wire) -> Stream:
    """A role, a null usage and empty texts before, between and after the tokens."""
    start = Part(data=b"".join(map(event, wire.opening())), due_s=0.0)
    between = [
        piece
        for k, part in enumerate(plain.parts, 1)
        for piece in (part, Part(data=event(wire.empty(k)), due_s=part.due_s))
    ]
    return replace(plain, parts=(start, *between))


def _pings(plain: Stream, _: Wire) -> Stream:
    """Comments, a named event without data, ids and retry times."""
    start = Part(data=b": hello\n\n: processing\nretry: 500\n\nevent: ping\n\n", due_s=0.0)
    between = [replace(part, data=b": ping\n\nid: 7\n" + part.data) for part in plain.parts]
    return replace(plain, parts=(start, *between))


def _line_ends(end: bytes) -> Shape:
    return lambda plain, _: replace(plain, encode=lambda data: data.replace(b"\n", end))


def _bom(plain: Stream, _: Wire) -> Stream:
    return replace(plain, parts=(Part(data=b"\xef\xbb\xbf", due_s=0.0), *plain.parts))


def _split(plain: Stream, _: Wire) -> Stream:
    """Each event in three pieces, cut anywhere, inside a character too; it is whole with the last one."""
    rng = random.Random(len(plain.parts))
    parts = []
    for part in plain.parts:
        data = part.data.replace(b'":" ', '":" é✓'.encode())
        first, second = sorted(rng.sample(range(1, len(data)), 2))
        pieces = data[:first], data[first:second], data[second:]
        parts += [replace(part, data=piece, ids=()) for piece in pieces[:2]]
        parts.append(replace(part, data=pieces[2]))
    return replace(plain, parts=tuple(parts))


def _multi_line(plain: Stream, _: Wire) -> Stream:
    """JSON over several ``data:`` lines."""
    spread = [replace(part, data=part.data.replace(b"data: {", b"data: {\ndata: ")) for part in plain.parts]
    return replace(plain, parts=tuple(spread))


def _burst(plain: Stream, _: Wire) -> Stream:
    """Everything at once, when the last token is ready."""
    whole = replace(
        plain.parts[-1],
        data=b"".join(part.data for part in plain.parts),
        ids=tuple(id_ for part in plain.parts for id_ in part.ids),
    )
    return replace(plain, parts=(whole,))


def _unterminated(plain: Stream, _: Wire) -> Stream:
    """The last event lacks its blank line."""
    *before, last = plain.tail
    raw = last if isinstance(last, bytes) else event(last)
    return replace(plain, tail=(*before, raw.rstrip()))


def _late_usage(plain: Stream, _: Wire) -> Stream:
    """What follows the finish is late; where finish and usage are one event, that is late."""
    at = min(1, len(plain.tail) - 1)
    return replace(plain, tail=(*plain.tail[:at], 0.05, *plain.tail[at:]))


def _usage_first(plain: Stream, _: Wire) -> Stream:
    finish, usage, done = plain.tail
    return replace(plain, tail=(usage, finish, done))


def _no_ids(plain: Stream, wire: Wire) -> Stream:
    assert isinstance(wire, Completions)
    return retold(plain, replace(wire, ids=False))


def _no_ids_bundles(plain: Stream, wire: Wire) -> Stream:
    """Several tokens a chunk, and only the last usage says how many there were."""
    assert isinstance(wire, Completions)
    return _bundles(plain, replace(wire, ids=False))


def _running_usage(plain: Stream, wire: Wire) -> Stream:
    """Several tokens a chunk without ids; each chunk's usage says how many there were so far."""
    assert isinstance(wire, Completions)
    return _bundles(plain, replace(wire, ids=False, running_usage=True))


def _cumulative(plain: Stream, wire: Wire) -> Stream:
    """Each event repeats all ids so far: SGLang unless it is told otherwise."""
    so_far: list[int] = []
    parts = []
    for part in plain.parts:
        so_far += part.ids
        parts.append(replace(part, data=event(wire.tokens(so_far, len(so_far)))))
    assert isinstance(wire, SgLang)
    return replace(plain, parts=tuple(parts), tail=(wire.finishing(so_far, len(so_far)), DONE))


def _finish_with_last(plain: Stream, wire: Wire) -> Stream:
    """The last token's event is the finish too."""
    assert isinstance(wire, SgLang | Vllm)
    last = plain.parts[-1]
    finishing = replace(last, data=event(wire.finishing(last.ids, len(plain.parts))))
    return replace(plain, parts=(*plain.parts[:-1], finishing), tail=plain.tail[1:])


def _in_field(field: str) -> Shape:
    def told(plain: Stream, wire: Wire) -> Stream:
        assert isinstance(wire, Chat)
        return retold(plain, replace(wire, field=field))

    return told


SHAPES: dict[str, Shape] = {
    "plain": lambda plain, _: plain,
    "bundles": _bundles,
    "empties": _empties,
    "pings": _pings,
    "crlf": _line_ends(b"\r\n"),
    "cr": _line_ends(b"\r"),
    "bom": _bom,
    "split": _split,
    "multi_line": _multi_line,
    "burst": _burst,
    "late_usage": _late_usage,
    "unterminated": _unterminated,
}
"""What any client must take."""

OPENAI_SHAPES: dict[str, Shape] = {
    "usage_first": _usage_first,
    "no_usage": lambda plain, _: replace(plain, tail=(plain.tail[0], DONE)),
    "no_done": lambda plain, _: replace(plain, tail=plain.tail[:2]),
}
"""Where finish, usage and ``[DONE]`` are events of their own."""

TEXT_SHAPES: dict[str, Shape] = {
    "no_ids": _no_ids,
    "no_ids_bundles": _no_ids_bundles,
    "running_usage": _running_usage,
}
"""Where a server may leave out the ids."""

CHAT_SHAPES: dict[str, Shape] = {name: _in_field(name) for name in ("reasoning", "reasoning_content", "tool_calls")}

FINISH_SHAPES: dict[str, Shape] = {"finish_with_last": _finish_with_last}
"""Where tokens may come with the finish."""

SGLANG_SHAPES: dict[str, Shape] = FINISH_SHAPES | {"cumulative": _cumulative}
