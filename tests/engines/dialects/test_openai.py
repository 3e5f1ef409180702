"""What is a token in the streams of OpenAI's two endpoints, where servers differ most.

Streams in ``openai/`` were recorded from a llama-server (commit 86a2835) with a random model of ours.
"""

from pathlib import Path
from typing import Any

import orjson
import pytest

from engines import sse
from engines.base import Chunk, EngineError, Event, ForcedRequest
from engines.dialects.registry import dialect

OPENAI, CHAT = dialect("openai"), dialect("openai_chat")
REQUEST = ForcedRequest(prompt_ids=(1, 2), output_ids=(3, 4, 5))
USAGE = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 2}}


def events(*payloads: Any) -> list[Event]:
    """Event k is stamped k."""
    texts = (payload if isinstance(payload, str) else orjson.dumps(payload).decode() for payload in payloads)
    return [Event(data=text, t_ns=k) for k, text in enumerate(texts)]


def text(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}], **more}


def delta(finish: str | None = None, ids: list[int] | None = None, **fields: Any) -> dict[str, Any]:
    told = {} if ids is None else {"token_ids": ids}
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish, **told}]}


def call(name: str | None = None, arguments: str = "") -> dict[str, Any]:
    return {"index": 0, "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("name", "file", "first", "prompt"), [("openai", "completions", 0, 4), ("openai_chat", "chat", 1, 29)]
)
def test_a_recorded_answer_has_a_chunk_a_token_and_the_servers_counts(
    name: str, file: str, first: int, prompt: int
) -> None:
    stream = (Path(__file__).with_name("openai") / f"{file}.sse").read_bytes()
    reads = [(k, part + b"\n\n") for k, part in enumerate(stream.split(b"\n\n")) if part]
    answer = dialect(name).parse(sse.parse(reads))
    # The chat begins with a role. llama-server gives no ids here, so a turn can only be verified from inside.
    assert answer.chunks == tuple(Chunk(t_ns=k, n_tokens=1) for k in range(first, first + 5))
    report = answer.report
    assert (report.cached_tokens, report.prefilled_tokens, report.generated_tokens) == (0, prompt, 5)
    assert report.decode_s == pytest.approx(report.extra["predicted_ms"] / 1e3)


def test_the_bodies_ask_for_a_greedy_stream_of_exactly_the_recorded_length() -> None:
    for name, body in (("prompt", OPENAI.body(REQUEST)), ("prompt_token_ids", CHAT.body(REQUEST))):
        assert body[name] == (1, 2)
        assert (body["max_tokens"], body["temperature"], body["stream"], body["return_token_ids"]) == (
            3,
            0,
            True,
            True,
        )


def test_text_counts_a_token_a_chunk_and_nothing_else_does() -> None:
    answer = OPENAI.parse(events(text(""), text("a"), "", text(" "), text("", "length"), USAGE, "[DONE]"))
    assert answer.chunks == (Chunk(t_ns=1, n_tokens=1), Chunk(t_ns=3, n_tokens=1))
    assert answer.report.generated_tokens == 2


def test_ids_count_where_the_server_gives_them_with_or_without_text() -> None:
    held_back = {"choices": [{"index": 0, "text": "", "token_ids": [7], "finish_reason": None}]}
    two = {"choices": [{"index": 0, "text": "é", "token_ids": [8, 9], "finish_reason": None}]}
    prompt = {"choices": [{"index": 0, "text": "", "prompt_token_ids": [1, 2], "token_ids": []}]}
    answer = OPENAI.parse(events(prompt, held_back, two, text("", "stop")))
    assert answer.chunks == (Chunk(t_ns=1, n_tokens=1, ids=(7,)), Chunk(t_ns=2, n_tokens=2, ids=(8, 9)))


def test_a_running_usage_tells_how_many_tokens_a_text_holds() -> None:
    running = [text("ab", usage={"completion_tokens": 3}), text("", usage={"completion_tokens": 4}), text("c")]
    answer = OPENAI.parse(events({"choices": [], "usage": {"completion_tokens": 0}}, *running, text("", "length")))
    assert [(chunk.t_ns, chunk.n_tokens) for chunk in answer.chunks] == [(1, 3), (2, 1), (3, 1)]


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_final_usage_anywhere_adds_no_token(place: int) -> None:
    payloads = [text("a"), text("b"), text("", "length")]
    answer = OPENAI.parse(events(*payloads[:place], USAGE, *payloads[place:]))
    assert [chunk.n_tokens for chunk in answer.chunks] == [1, 1]
    assert answer.report.generated_tokens == 2


def test_a_usage_in_the_finish_chunk_adds_no_token() -> None:
    answer = OPENAI.parse(events(text("ab"), text("", "length", usage={"completion_tokens": 2})))
    assert [(chunk.t_ns, chunk.n_tokens) for chunk in answer.chunks] == [(0, 1)]
    assert answer.report.generated_tokens == 2  # more than the chunks tell: the turn gets no TPOT


def test_every_kind_of_generated_text_of_a_chat_is_a_token() -> None:
    generated = [
        delta(reasoning="a"),
        delta(reasoning_content="b"),
        delta(reasoning="c", reasoning_content="c"),  # some servers send both spellings
        delta(content="d"),
        delta(refusal="e"),
        delta(tool_calls=[call("search")]),
        delta(tool_calls=[call(arguments='{"q"')]),
        delta(function_call={"arguments": "}"}),
    ]
    answer = CHAT.parse(events(delta(role="assistant"), *generated, delta("tool_calls"), USAGE, "[DONE]"))
    assert [(chunk.t_ns, chunk.n_tokens) for chunk in answer.chunks] == [(k, 1) for k in range(1, 9)]


def test_what_generates_nothing_is_no_token_of_a_chat() -> None:
    nothing = [
        delta(role="assistant", content=""),
        delta(),
        delta(content=None, reasoning_content=None),
        delta(tool_calls=[]),
        delta(tool_calls=[call(arguments="")]),
        {"choices": [{"index": 0, "delta": None, "finish_reason": None}]},
        {"choices": []},
        {"choices": None, "usage": None},
    ]
    answer = CHAT.parse(events(*nothing, delta(content="a"), *nothing, delta("stop")))
    assert [chunk.t_ns for chunk in answer.chunks] == [len(nothing)]


def test_ids_of_a_chat_are_those_of_its_choice() -> None:
    answer = CHAT.parse(events(delta(ids=[7, 8], content="a"), delta(ids=[9]), delta("stop", ids=[2])))
    assert [chunk.ids for chunk in answer.chunks] == [(7, 8), (9,), (2,)]


@pytest.mark.parametrize(
    ("payloads", "kind", "said"),
    [
        ((delta(content="a"), {"object": "error", "message": "out of memory", "code": 500}), "error_event", "memory"),
        ((delta(content="a"), {"error": {"message": "out of memory"}}, delta("stop")), "error_event", "memory"),
        ((delta(content="a"), delta("content_filter")), "error_event", "content_filter"),
        ((delta(content="a"), delta({"why": 1})), "error_event", "why"),
        ((delta(content="a"), USAGE, "[DONE]"), "cut", "after 1 tokens without a finish_reason"),
        ((delta(content=["a"]), delta("stop")), "protocol", "not a string"),
        ((delta(tool_calls="a"), delta("stop")), "protocol", "tool_calls"),
        ((delta(ids=["a"]), delta("stop")), "protocol", "token_ids"),
    ],
)
def test_a_failure_is_told_apart_and_says_what_the_server_said(
    payloads: tuple[Any, ...], kind: str, said: str
) -> None:
    with pytest.raises(EngineError, match=said) as raised:
        CHAT.parse(events(*payloads))
    assert raised.value.kind == kind
