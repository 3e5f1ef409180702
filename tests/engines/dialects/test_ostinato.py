"""What of an ostinato stream is a token, a report or a failure."""

from typing import Any

import orjson
import pytest

from engines.base import Chunk, EngineError, Event, ForcedRequest
from engines.dialects.ostinato import DIALECT
from engines.dialects.registry import dialect

FINISH = {"choices": [{"index": 0, "text": "", "token_ids": [], "finish_reason": "length"}]}


def token(*ids: int, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": "x", "token_ids": list(ids), "finish_reason": None, **fields}]}


def events(*payloads: Any) -> list[Event]:
    """Event k is stamped k."""
    texts = (payload if isinstance(payload, str) else orjson.dumps(payload).decode() for payload in payloads)
    return [Event(data=text, t_ns=k) for k, text in enumerate(texts)]


def test_the_body_asks_for_a_greedy_stream_of_exactly_the_recorded_length() -> None:
    body = DIALECT.body(ForcedRequest(prompt_ids=(1, 2), output_ids=(3, 4, 5)))
    assert body["prompt"] == (1, 2)
    assert body["max_tokens"] == 3
    assert body["temperature"] == 0
    assert body["stream"] is True
    assert body["return_token_ids"] is True


def test_only_ids_are_tokens() -> None:
    role = {"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]}
    answer = DIALECT.parse(events(role, token(), token(7), "", token(8, 9), token(10, text=""), FINISH, "[DONE]"))
    assert answer.chunks == (
        Chunk(t_ns=2, n_tokens=1, ids=(7,)),
        Chunk(t_ns=4, n_tokens=2, ids=(8, 9)),
        Chunk(t_ns=5, n_tokens=1, ids=(10,)),
    )


def test_the_finish_chunk_may_carry_the_last_token() -> None:
    assert DIALECT.parse(events(token(7, finish_reason="stop"))).chunks == (Chunk(t_ns=0, n_tokens=1, ids=(7,)),)


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 10, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 6}},
    "timings": {"cached_n": 6, "prompt_n": 4, "prompt_ms": 12.5, "predicted_n": 1, "predicted_ms": 3.0, "hits": 9},
}


@pytest.mark.parametrize("order", [(token(7), FINISH, USAGE), (USAGE, token(7), FINISH), (token(7), USAGE, FINISH)])
def test_usage_and_finish_come_in_any_order(order: tuple[dict[str, Any], ...]) -> None:
    report = DIALECT.parse(events(*order)).report
    assert (report.cached_tokens, report.prefilled_tokens, report.generated_tokens) == (6, 4, 1)
    assert (report.prefill_s, report.decode_s) == (0.0125, 0.003)
    assert report.extra["hits"] == 9


def test_what_the_server_does_not_say_is_absent_and_not_zero() -> None:
    report = DIALECT.parse(events(token(7), FINISH)).report
    assert report.cached_tokens is None
    assert report.prefilled_tokens is None
    assert report.generated_tokens is None
    assert report.prefill_s is None
    assert report.decode_s is None


@pytest.mark.parametrize(
    ("payloads", "kind", "said"),
    [
        (
            (token(7), {"error": {"message": "out of memory", "type": "server_error"}}, FINISH),
            "error_event",
            "out of",
        ),
        ((token(7), {"error": "plain words"}), "error_event", "plain words"),
        (({"error": {"message": "prompt too long"}},), "context", "prompt too long"),
        ((token(7),), "cut", "after 1 tokens without a finish_reason"),
        ((), "cut", "after 0 tokens"),
        ((token(7), '{"choices": [{"ind'), "cut", "inside an event"),
        ((token(7), "{broken", FINISH), "protocol", "not JSON"),
        (("[1]", FINISH), "protocol", "not a JSON object"),
        (({"choices": "x"}, FINISH), "protocol", "choices"),
        (({"choices": [{"text": "x", "token_ids": ["1"]}]}, FINISH), "protocol", "token_ids"),
        (({"choices": [{"text": "x"}]}, FINISH), "protocol", "text without token_ids"),
        ((token(7, finish_reason="abort"),), "error_event", "abort"),
    ],
)
def test_a_failure_is_told_apart_and_says_what_the_server_said(
    payloads: tuple[Any, ...], kind: str, said: str
) -> None:
    with pytest.raises(EngineError, match=said) as raised:
        DIALECT.parse(events(*payloads))
    assert raised.value.kind == kind


def test_an_event_named_error_is_an_error_whatever_it_holds() -> None:
    with pytest.raises(EngineError, match="out of cheese") as raised:
        DIALECT.parse([Event(data="out of cheese", t_ns=0, name="error"), *events(token(7), FINISH)])
    assert raised.value.kind == "error_event"


def test_the_registry_finds_a_dialect_by_its_name() -> None:
    assert dialect("ostinato") is DIALECT


def test_an_unknown_dialect_names_the_known_ones() -> None:
    with pytest.raises(EngineError, match=r"engine\.dialect.*'morse'.*ostinato"):
        dialect("morse")
