"""One request a token, on every dialect of the fake engine, and what becomes of the answers."""

from collections.abc import Iterator
from typing import Any

import pytest

from engines.base import Answer, Chunk, EngineError, ForcedRequest, ServerReport
from engines.client import EngineClient
from engines.dialects.registry import dialect
from engines.fake.server import FakeEngine, FakeSettings, in_thread
from engines.forcing.one_token import NOTE, OneToken
from engines.forcing.registry import forcing, note
from engines.settings import EngineSettings

DIALECTS = ("ostinato", "openai", "openai_chat", "llamacpp", "sglang", "vllm", "freetoken")
REQUEST = ForcedRequest(prompt_ids=tuple(range(10)), output_ids=(5, 17, 3, 250))
DECODE_S = 0.001


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEngine]:
    with in_thread(FakeSettings(prefill_s=0.002, decode_s=DECODE_S)) as serving:
        yield serving


def settings(**changes: Any) -> EngineSettings:
    return EngineSettings(name="e", label="E", dialect="openai", forcing="one_token", **changes)


@pytest.mark.anyio
@pytest.mark.parametrize("name", DIALECTS)
async def test_a_turn_is_a_request_a_token_behind_the_recorded_ones(engine: FakeEngine, name: str) -> None:
    seen = len(engine.stamps)
    async with EngineClient(
        engine.url, dialect(name), OneToken(), request_timeout_s=30, stall_timeout_s=30
    ) as client:
        reply = await client.turn(REQUEST)
    stamps = list(engine.stamps)[seen:]
    assert len(stamps) == 4
    assert [len(one.sent_ns) for one in stamps] == [1] * 4
    assert reply.verified_by == "prompts"
    assert reply.server_token_ns is None
    assert reply.report.generated_tokens == 4
    assert [(chunk.n_tokens, chunk.ids) for chunk in reply.chunks] == [(1, ())] * 4
    # Each is stamped where it arrived, and the first request's sending begins the turn.
    assert reply.sent_ns < stamps[0].arrived_ns
    for one, chunk in zip(stamps, reply.chunks, strict=True):
        assert one.sent_ns[0] < chunk.t_ns
    assert reply.chunks[0].t_ns < stamps[1].arrived_ns
    assert reply.end_ns >= reply.chunks[-1].t_ns


@pytest.mark.anyio
async def test_the_next_prompt_holds_the_recorded_token_and_not_the_servers(engine: FakeEngine) -> None:
    asked = list(OneToken().requests(REQUEST))
    assert [one.prompt_ids for one in asked] == [REQUEST.prompt_ids + REQUEST.output_ids[:k] for k in range(4)]
    assert [one.output_ids for one in asked] == [(5,), (17,), (3,), (250,)]
    async with EngineClient(
        engine.url, dialect("openai"), OneToken(), request_timeout_s=30, stall_timeout_s=30
    ) as client:
        turn = ForcedRequest(prompt_ids=(900, 901, 902), output_ids=REQUEST.output_ids)
        first = await client.turn(turn)
        later = await client.turn(ForcedRequest(prompt_ids=(*turn.prompt_ids, *turn.output_ids, 7), output_ids=(8,)))
    assert first.report.cached_tokens == 0
    # The engine holds what it was sent: all but the last recorded token.
    assert later.report.cached_tokens == len(turn.prompt_ids) + len(turn.output_ids) - 1


@pytest.mark.anyio
async def test_a_failure_in_the_middle_of_a_turn_is_the_turns() -> None:
    with in_thread(FakeSettings(faults=(("http_500", 3),))) as broken:
        async with EngineClient(
            broken.url, dialect("openai"), OneToken(), request_timeout_s=30, stall_timeout_s=30
        ) as client:
            with pytest.raises(EngineError, match="expert 17 caught fire"):
                await client.turn(REQUEST)
        assert len(broken.stamps) == 3


def answered(*chunks: Chunk, **report: Any) -> Answer:
    return Answer(chunks=chunks, report=ServerReport(**report))


def test_a_token_without_text_is_stamped_by_the_end_of_its_request() -> None:
    some, none = answered(Chunk(t_ns=5, n_tokens=1, ids=(9,))), answered()
    answer = OneToken().join(REQUEST, [(some, 7), (none, 19)])
    assert answer.chunks == (Chunk(t_ns=5, n_tokens=1), Chunk(t_ns=19, n_tokens=1))


def test_the_report_is_the_first_requests_prefill_and_all_that_follows_is_decoding() -> None:
    first = answered(cached_tokens=3, prefilled_tokens=7, prefill_s=0.5, decode_s=0.0)
    later = answered(cached_tokens=10, prefilled_tokens=1, prefill_s=0.02, decode_s=0.001)
    report = OneToken().join(REQUEST, [(first, 1), (later, 2), (later, 3)]).report
    assert (report.cached_tokens, report.prefilled_tokens, report.generated_tokens) == (3, 7, 3)
    assert report.prefill_s == 0.5
    assert report.decode_s == pytest.approx(0.042)
    silent = answered(cached_tokens=10)
    assert OneToken().join(REQUEST, [(first, 1), (silent, 2)]).report.decode_s is None


def test_a_server_that_does_not_stop_after_one_token_is_refused() -> None:
    two = answered(Chunk(t_ns=5, n_tokens=2))
    with pytest.raises(EngineError, match="produced 2 tokens for output token 0"):
        OneToken().join(REQUEST, [(two, 7)])


def test_it_is_said_beside_the_engines_own_note(tmp_path: Any) -> None:
    assert isinstance(forcing(settings(), tmp_path), OneToken)
    assert note(settings(note="Quantised.")) == f"Quantised. {NOTE}"
    assert note(settings()) == NOTE
    assert note(EngineSettings(name="e", label="E", dialect="openai", forcing="field", note="n")) == "n"
