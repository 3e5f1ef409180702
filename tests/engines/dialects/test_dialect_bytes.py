"""Whatever the bytes are and however they are split, a dialect gives one answer or an ``EngineError``."""

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines import sse
from engines.base import Answer, EngineError, Event, ForcedRequest
from engines.dialects.registry import dialect
from engines.fake.asked import Asked, kind_of
from engines.fake.catalogue import STREAMS, faults, shapes
from engines.fake.shapes import TEXT_SHAPES
from engines.fake.streams import event, stream

DIALECTS = ("ostinato", "openai", "openai_chat", "llamacpp", "sglang", "vllm", "freetoken")
IDS = (5, 17, 3, 250, 99, 4, 8)


def pieces(name: str, shape: str) -> list[tuple[bytes, tuple[int, ...]]]:
    """What the fake engine sends without HTTP's framing: each write, and the tokens that are whole with it."""
    spoken = dialect(name)
    kind = kind_of(spoken.path, spoken.body(ForcedRequest(prompt_ids=(1, 2), output_ids=IDS)).get("prompt"))
    asked = Asked(kind=kind, prompt_ids=(1, 2), output_ids=IDS, ids=True, stream=shape)
    wire = asked.wire(number=1, cached_tokens=0)
    answer = STREAMS[shape](stream(wire, IDS, first_due_s=0.0, decode_s=0.0), wire)
    tail = [entry for entry in answer.tail if not isinstance(entry, float)]
    written = [(part.data, part.ids) for part in answer.parts]
    written += [(entry if isinstance(entry, bytes) else event(entry), ()) for entry in tail]
    return [(answer.encode(data), ids) for data, ids in written]


def sent(name: str, shape: str) -> bytes:
    return b"".join(data for data, _ in pieces(name, shape))


def outcome(name: str, reads: list[tuple[int, bytes]]) -> Answer | str:
    """The answer without its stamps, or how it failed."""
    try:
        answer = dialect(name).parse(sse.parse(reads))
    except EngineError as error:
        return f"{error.kind}: {error}"
    return replace(answer, chunks=tuple(replace(chunk, t_ns=0) for chunk in answer.chunks))


STREAMED = [(name, shape) for name in DIALECTS for shape in shapes(name) | faults(name) if shape != "gzip"]


@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name in DIALECTS for shape in shapes(name)])
def test_each_token_has_the_stamp_of_the_read_that_made_it_whole(name: str, shape: str) -> None:
    written = pieces(name, shape)
    answer = dialect(name).parse(sse.parse([(k, data) for k, (data, _) in enumerate(written)]))
    told = shape not in TEXT_SHAPES
    chunks = [(chunk.t_ns, chunk.ids) for chunk in answer.chunks]
    if shape == "burst":
        assert chunks == [(0, (id_,)) for id_ in IDS]
    else:
        assert chunks == [(k, ids if told else ()) for k, (_, ids) in enumerate(written) if ids]
    assert sum(chunk.n_tokens for chunk in answer.chunks) == (3 if shape == "no_ids_bundles" else len(IDS))


@pytest.mark.parametrize(("name", "shape"), STREAMED)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_any_chunking_of_the_same_bytes_gives_the_same_answer(name: str, shape: str, data: st.DataObject) -> None:
    whole = sent(name, shape)
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=20))
    reads = [(k, whole[start:end]) for k, (start, end) in enumerate(pairwise([0, *sorted(cuts), len(whole)]))]
    assert outcome(name, reads) == outcome(name, [(0, whole)])


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_stream_raises_nothing_but_engine_error(name: str, data: st.DataObject) -> None:
    whole = bytearray(sent(name, data.draw(st.sampled_from(sorted(shapes(name))))))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole)))
        whole[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=6))
    with suppress(EngineError):
        dialect(name).parse(sse.parse([(0, bytes(whole))]))


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.binary(max_size=40) | st.sampled_from([b"data: ", b"\n\n", b"{}", b"[", b"event: error"])))
def test_random_bytes_raise_nothing_but_engine_error(name: str, parts: list[bytes]) -> None:
    with suppress(EngineError):
        dialect(name).parse(sse.parse(list(enumerate(parts))))


FIELDS = (
    "choices", "delta", "content", "reasoning", "tool_calls", "function", "arguments", "text", "token_ids",
    "finish_reason", "usage", "prompt_tokens_details", "completion_tokens", "timings", "prompt_ms", "error", "object",
    "tokens", "tokens_predicted", "stop", "output_ids", "meta_info", "completion_tokens", "type",
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, min_size=1, max_size=5)
    ),
    max_leaves=12,
)
MARK = st.sampled_from(["\0id:5", "\0prompt:9:4", "\0id:5\0id:6", "\0id:", "\0prompt:1"])
EVENT = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(
            st.fixed_dictionaries(
                {}, optional=dict.fromkeys(("delta", "text", "token_ids", "finish_reason"), JSON | MARK)
            ),
            max_size=2,
        ),
        "tokens": st.lists(st.integers(0, 9), max_size=3) | JSON,
        "stop": st.booleans(),
        "output_ids": st.lists(st.integers(0, 9), max_size=3) | JSON,
        "meta_info": st.fixed_dictionaries(
            {}, optional={"completion_tokens": st.integers(0, 9), "finish_reason": JSON}
        )
        | JSON,
        **dict.fromkeys(("usage", "timings", "error", "object", "tokens_predicted"), JSON),
    },
)


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=150, deadline=None)
@given(payloads=st.lists(EVENT | JSON, max_size=4))
def test_any_json_gives_an_answer_or_an_engine_error(name: str, payloads: list[Any]) -> None:
    with suppress(EngineError):
        answer = dialect(name).parse([Event(data=orjson.dumps(one).decode(), t_ns=0) for one in payloads])
        assert all(chunk.n_tokens >= max(1, len(chunk.ids)) for chunk in answer.chunks)
