"""SGLang, vLLM and FreeToken on the streams in ``documented/``, which are not recorded (see the README there)."""

from pathlib import Path

import orjson
import pytest

from engines import sse
from engines.base import Answer, Chunk, EngineError, ForcedRequest
from engines.complaint import complaint
from engines.dialects.registry import dialect
from engines.forcing.simple import verify_stream

DOCUMENTED = Path(__file__).with_name("documented")
REQUEST = ForcedRequest(prompt_ids=(5, 6, 7), output_ids=(9707, 11, 151645))
ONE_BY_ONE = tuple(Chunk(t_ns=n, n_tokens=1, ids=(id_,)) for n, id_ in enumerate(REQUEST.output_ids))


def parse(name: str, file: str) -> Answer:
    """Each event arrives in a read of its own, at 0, 1, 2, … ns."""
    parts = [part + b"\n\n" for part in (DOCUMENTED / file).read_bytes().split(b"\n\n") if part]
    return dialect(name).parse(sse.parse(list(enumerate(parts))))


def test_sglang_is_asked_for_token_ids_in_and_out() -> None:
    assert dialect("sglang").path == "/generate"
    assert dialect("sglang").body(REQUEST) == {
        "input_ids": (5, 6, 7),
        "sampling_params": {"temperature": 0, "max_new_tokens": 3, "ignore_eos": True},
        "stream": True,
    }


def test_sglangs_growing_and_partial_lists_of_ids_are_told_apart() -> None:
    growing = parse("sglang", "sglang_cumulative.sse")
    assert growing.chunks == ONE_BY_ONE
    partial = parse("sglang", "sglang_incremental.sse")
    assert partial.chunks == (ONE_BY_ONE[0], Chunk(t_ns=1, n_tokens=2, ids=(11, 151645)))
    for answer in growing, partial:
        verify_stream(REQUEST, answer)
        report = answer.report
        assert (report.cached_tokens, report.prefilled_tokens, report.generated_tokens) == (96, 24, 3)
    assert growing.report.extra["e2e_latency"] == 0.31


@pytest.mark.parametrize(
    ("file", "kind", "says"),
    [
        ("sglang_abort.sse", "error_event", "abort: Abort in waiting queue"),
        ("sglang_too_long.sse", "context", "maximum context length of 32768"),
    ],
)
def test_what_sglang_says_of_a_failure_is_kept(file: str, kind: str, says: str) -> None:
    with pytest.raises(EngineError, match=says) as failure:
        parse("sglang", file)
    assert failure.value.kind == kind


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ({"output_ids": [5], "meta_info": {}}, "does not count on"),
        ({"output_ids": [5, 6, 7], "meta_info": {"completion_tokens": 2}}, "3 output_ids where 2 are new of 2"),
        ({"output_ids": "5", "meta_info": {"completion_tokens": 1}}, "not a list of integers"),
    ],
)
def test_sglang_counts_that_do_not_fit_are_no_answer(event: object, says: str) -> None:
    with pytest.raises(EngineError, match=says) as failure:
        dialect("sglang").parse(sse.parse([(0, b"data: " + orjson.dumps(event) + b"\n\n")]))
    assert failure.value.kind == "protocol"


def test_sglang_without_ids_has_its_counts_and_is_refused_when_verified() -> None:
    finish = {"finish_reason": {"type": "stop"}, "prompt_tokens": 3, "completion_tokens": 3}
    event = {"text": "Hello", "meta_info": finish}
    answer = dialect("sglang").parse(sse.parse([(0, b"data: " + orjson.dumps(event) + b"\n\n")]))
    assert answer.chunks == (Chunk(t_ns=0, n_tokens=3),)
    assert answer.report.prefilled_tokens is None
    with pytest.raises(EngineError, match="tells 0 ids for 3 tokens"):
        verify_stream(REQUEST, answer)


def test_vllm_is_asked_for_token_ids_in_and_out() -> None:
    assert dialect("vllm").path == "/inference/v1/generate"
    assert dialect("vllm").body(REQUEST) == {
        "token_ids": (5, 6, 7),
        "sampling_params": {"temperature": 0, "max_tokens": 3, "ignore_eos": True},
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_vllms_ids_its_finish_with_the_last_and_its_usage() -> None:
    answer = parse("vllm", "vllm.sse")
    assert answer.chunks == ONE_BY_ONE
    verify_stream(REQUEST, answer)
    report = answer.report
    assert (report.cached_tokens, report.prefilled_tokens, report.generated_tokens) == (112, 8, 3)


def test_vllm_started_without_trace_replay_is_quoted() -> None:
    assert "--enable-trace-replay" in str(complaint((DOCUMENTED / "vllm_refused.json").read_bytes(), "http"))


def test_freetokens_prompt_is_ids_for_its_hook() -> None:
    body = dialect("freetoken").body(REQUEST)
    assert body["prompt"] == "\0ids:BQAAAAYAAAAHAAAA"  # 5, 6, 7 as 32-bit integers
    assert (body["max_tokens"], body["ignore_eos"], body["stream"]) == (3, True, True)


def test_freetokens_marks_are_ids_and_counts() -> None:
    answer = parse("freetoken", "freetoken_hooked.sse")
    assert [(chunk.t_ns, chunk.ids) for chunk in answer.chunks] == [(1, (9707,)), (2, (11,)), (3, (151645,))]
    verify_stream(REQUEST, answer)
    report = answer.report
    assert (report.cached_tokens, report.prefilled_tokens, report.generated_tokens) == (96, 24, 3)


def test_freetoken_without_the_hook_gives_text_and_is_refused_when_verified() -> None:
    answer = parse("freetoken", "freetoken_unhooked.sse")
    assert not any(chunk.ids for chunk in answer.chunks)
    assert answer.report.prefilled_tokens is None
    with pytest.raises(EngineError, match="tells 0 ids for 2 tokens"):
        verify_stream(REQUEST, answer)


def test_what_freetoken_says_of_a_failure_is_kept() -> None:
    with pytest.raises(EngineError, match="exceed the KV cache") as failure:
        parse("freetoken", "freetoken_error.sse")
    assert failure.value.kind in ("context", "error_event")


def test_a_mark_that_the_hook_does_not_write_is_no_answer() -> None:
    event = {"choices": [{"text": "\0logprob:5", "finish_reason": None}]}
    with pytest.raises(EngineError, match="a mark that the forcing hook does not write"):
        dialect("freetoken").parse(sse.parse([(0, b"data: " + orjson.dumps(event) + b"\n\n")]))
