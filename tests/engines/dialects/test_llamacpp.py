"""Streams in ``llamacpp/`` were recorded from llama-server b11434 with a random model of ours."""

from pathlib import Path

import pytest

from engines import sse
from engines.base import Answer, Chunk, EngineError, ForcedRequest
from engines.complaint import complaint
from engines.dialects.registry import dialect

RECORDED = Path(__file__).with_name("llamacpp")
LLAMACPP = dialect("llamacpp")


def parse(stream: bytes) -> Answer:
    """Each event arrives in a read of its own, at 0, 1, 2, … ns."""
    parts = [part + b"\n\n" for part in stream.split(b"\n\n") if part.strip()]
    return LLAMACPP.parse(sse.parse(list(enumerate(parts))))


def recorded(name: str) -> bytes:
    return (RECORDED / name).read_bytes()


def test_the_body_asks_for_greedy_cached_ids_and_never_takes_end_tokens_away() -> None:
    body = LLAMACPP.body(ForcedRequest(prompt_ids=(5, 6, 7), output_ids=(8, 9)))
    fields = body.pop("response_fields")
    assert body == {
        "prompt": (5, 6, 7),
        "n_predict": 2,
        "temperature": 0,
        "cache_prompt": True,
        "stream": True,
        "return_tokens": True,
    }
    assert {"stop", "tokens_predicted", "timings"} <= set(fields)
    assert LLAMACPP.path == "/completion"


def test_a_recorded_answer_has_a_chunk_a_token_and_the_servers_counts() -> None:
    answer = parse(recorded("free.sse"))
    assert [(chunk.t_ns, chunk.n_tokens, len(chunk.ids)) for chunk in answer.chunks] == [(n, 1, 1) for n in range(4)]
    report = answer.report
    assert (report.cached_tokens, report.prefilled_tokens, report.generated_tokens) == (0, 4, 4)
    assert report.prefill_s == pytest.approx(report.extra["prompt_ms"] / 1e3)
    assert report.decode_s == pytest.approx(report.extra["predicted_ms"] / 1e3)
    assert report.extra["stop_type"] == "limit"


def test_tokens_held_back_for_a_character_arrive_with_it_without_their_ids() -> None:
    answer = parse(recorded("held_back.sse"))
    assert answer.chunks == (
        Chunk(t_ns=0, n_tokens=1, ids=(501,)),
        Chunk(t_ns=1, n_tokens=1, ids=(502,)),
        Chunk(t_ns=2, n_tokens=4, ids=(260,)),
        Chunk(t_ns=3, n_tokens=1, ids=(503,)),
        Chunk(t_ns=4, n_tokens=3),  # two bytes of a character, then the end token
    )
    assert answer.report.generated_tokens == 10
    assert answer.report.extra["stop_type"] == "eos"


def test_an_answer_that_ends_inside_a_character_keeps_its_count() -> None:
    answer = parse(recorded("ends_inside_character.sse"))
    assert [chunk.n_tokens for chunk in answer.chunks] == [1, 3]
    assert answer.report.generated_tokens == 4


def test_older_servers_without_a_running_count_are_read_by_their_ids() -> None:
    stream = recorded("held_back.sse")
    for count in b"1", b"2", b"6", b"7":
        stream = stream.replace(b'"tokens_predicted":' + count + b",", b"")
    assert [chunk.n_tokens for chunk in parse(stream).chunks] == [1, 1, 1, 1, 6]


@pytest.mark.parametrize("events", [0, 1, 4])
def test_a_stream_without_its_final_event_was_cut(events: int) -> None:
    parts = recorded("free.sse").split(b"\n\n")[:events]
    with pytest.raises(EngineError, match=rf"after {events} tokens without its final event") as failure:
        parse(b"\n\n".join(parts))
    assert failure.value.kind == "cut"


def test_a_stream_that_ends_inside_an_event_was_cut() -> None:
    with pytest.raises(EngineError, match="inside an event") as failure:
        parse(recorded("free.sse")[:-300])
    assert failure.value.kind == "cut"


@pytest.mark.parametrize(
    ("event", "kind", "says"),
    [
        # As tools/server/server-context.cpp writes it into a stream that has begun.
        (b'data: {"error":{"code":500,"message":"Compute error.","type":"server_error"}}', "error_event", "Compute"),
        (b'event: error\ndata: {"error":{"message":"slot lost","type":"server_error"}}', "error_event", "slot lost"),
        (
            b'data: {"error":{"message":"Context size has been exceeded.","type":"server_error"}}',
            "context",
            "context",
        ),
        (b"data: <html>", "protocol", "not JSON"),
        (b"data: [1]", "protocol", "not a JSON object"),
        (b'data: {"content":"a","tokens":["a"],"stop":false}', "protocol", "not a list of integers"),
        (b'data: {"content":"","tokens":[],"stop":true}', "protocol", "without timings"),
    ],
)
def test_what_is_no_answer_is_said(event: bytes, kind: str, says: str) -> None:
    head, tail = recorded("free.sse").split(b"\n\n", 1)
    with pytest.raises(EngineError, match=says) as failure:
        parse(b"\n\n".join([head, event, tail]))
    assert failure.value.kind == kind


def test_a_recorded_refusal_is_about_the_context() -> None:
    assert complaint(recorded("too_long.json"), "http").kind == "context"
