"""Every dialect, shape and fault of stream, and what a turn must give for it, through real sockets."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from analysis import metrics
from engines.base import Answer, EngineError, ForcedRequest, Reply
from engines.client import EngineClient
from engines.dialects.registry import dialect
from engines.fake.catalogue import faults, shapes
from engines.fake.journal import Stamps
from engines.fake.server import FakeEngine, FakeSettings, in_thread
from engines.fake.shapes import TEXT_SHAPES
from engines.forcing.field import FieldForcing
from engines.forcing.simple import verify_stream
from replay.record import TurnRecord
from replay.session import observed

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Replays run on uvloop; asyncio's own loop must give the same."""
    return "asyncio", {"use_uvloop": request.param}


DIALECTS = ("ostinato", "openai", "openai_chat", "llamacpp", "sglang", "vllm", "freetoken")
REQUEST = ForcedRequest(prompt_ids=tuple(range(10)), output_ids=(5, 17, 3, 250, 99, 4, 8))
PREFILL_S, DECODE_S = 0.008, 0.002
TRIES = 30
"""A stamp that is late may be the busy machine's, a few times; a wrong rule is late every time."""
TTFT_LATE_S, TPOT_OFF_S = 0.004, 0.0005
NO_TPOT = ("burst", "no_ids_bundles")
"""All tokens in one read; seven in three chunks, and nobody knows which: no TPOT, rather than a wrong one."""


class Forced(FieldForcing):
    """Asks for the stream ``fault``. ``trusted``: as if the tokens were verified inside the server."""

    def __init__(self, fault: str, *, trusted: bool = False) -> None:
        self.fault = fault
        self._trusted = trusted

    def fields(self, request: ForcedRequest) -> dict[str, Any]:
        return super().fields(request) | {"fault": self.fault}

    def verify(self, request: ForcedRequest, answer: Answer) -> tuple[str, None]:
        if self._trusted:
            return "shim", None
        verify_stream(request, answer)
        return "ids", None


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEngine]:
    with in_thread(FakeSettings(prefill_s=PREFILL_S, decode_s=DECODE_S)) as serving:
        yield serving


def patience_s(fault: str, short_s: float) -> float:
    """Short where the stream stalls; elsewhere a busy machine may be silent for long."""
    return short_s if fault.startswith("stall") else 5.0


def client_of(engine: FakeEngine, name: str, forcing: Forced, *, stall_timeout_s: float = 2.0) -> EngineClient:
    return EngineClient(engine.url, dialect(name), forcing, request_timeout_s=5.0, stall_timeout_s=stall_timeout_s)


@dataclass(frozen=True)
class Error:
    """How far the metrics of a reply are from what the server says it sent, seconds."""

    ttft_s: float
    tpot_s: float | None
    """None where the metric has no value."""


def error_of(reply: Reply, stamps: Stamps) -> Error:
    turn = TurnRecord(
        engine="fake",
        session_id="s",
        turn=0,
        kind="first",
        attempt=0,
        status="ok",
        prompt_tokens=len(REQUEST.prompt_ids),
        new_tokens=len(REQUEST.prompt_ids),
        output_tokens=len(REQUEST.output_ids),
        due_ns=reply.sent_ns,
        **observed(reply),
    )
    ttft_s, tpot_s = metrics.ttft_s(turn), metrics.tpot_s(turn)
    assert ttft_s is not None
    sent = stamps.sent_ns
    server_ttft_s = (sent[0] - stamps.arrived_ns) / 1e9
    together = sent.count(sent[0])
    server_tpot_s = (sent[-1] - sent[0]) / (len(sent) - together) / 1e9 if together < len(sent) else 0.0
    return Error(ttft_s - server_ttft_s, None if tpot_s is None else tpot_s - server_tpot_s)


async def measured(engine: FakeEngine, name: str, shape: str) -> tuple[Reply, Error]:
    """The turn least disturbed of a few."""
    async with client_of(engine, name, Forced(shape, trusted=shape in TEXT_SHAPES)) as client:
        for _ in range(TRIES):
            reply = await client.turn(REQUEST)
            error = error_of(reply, engine.stamps[-1])
            off_s = 0.0 if shape in NO_TPOT else TPOT_OFF_S if error.tpot_s is None else abs(error.tpot_s)
            if error.ttft_s < TTFT_LATE_S and off_s < TPOT_OFF_S:
                break
    return reply, error


SHAPES = [(name, shape) for name in DIALECTS for shape in shapes(name)]
BUNDLES = {"bundles": [3, 3, 1], "running_usage": [3, 3, 1], "no_ids_bundles": [1, 1, 1]}
"""Tokens a chunk as far as the stream tells; one each in every other shape."""


@pytest.mark.parametrize(("name", "shape"), SHAPES)
async def test_every_shape_gives_its_tokens_and_their_times(engine: FakeEngine, name: str, shape: str) -> None:
    reply, error = await measured(engine, name, shape)
    assert 0 < error.ttft_s < TTFT_LATE_S
    ids = tuple(id_ for chunk in reply.chunks for id_ in chunk.ids)
    assert ids == (() if shape in TEXT_SHAPES else REQUEST.output_ids)
    assert [chunk.n_tokens for chunk in reply.chunks] == BUNDLES.get(shape, [1] * 7)
    assert (error.tpot_s is None) == (shape in NO_TPOT)
    assert abs(error.tpot_s or 0.0) < TPOT_OFF_S
    assert reply.report.generated_tokens == (None if shape == "no_usage" else 7)
    told = shape != "no_usage" or name == "freetoken"  # its hook tells of the prompt before the first token
    assert (reply.report.prefilled_tokens is not None) == told
    assert reply.chunks[-1].t_ns <= reply.end_ns
    if shape == "late_usage":  # what follows the last token moves the end and not the token
        assert reply.end_ns - reply.chunks[-1].t_ns > 40e6


@pytest.mark.parametrize("name", ["openai", "openai_chat"])
@pytest.mark.parametrize("shape", TEXT_SHAPES)
async def test_text_without_ids_is_not_taken_for_verified(engine: FakeEngine, name: str, shape: str) -> None:
    async with client_of(engine, name, Forced(shape)) as client:
        with pytest.raises(EngineError, match=r"tells 0 ids for \d tokens, so they can't be verified") as raised:
            await client.turn(REQUEST)
    assert raised.value.kind == "protocol"


EXPECTED: dict[str, tuple[str, str]] = {
    "http_500": ("http", "HTTP 500.*server_error: expert 17 caught fire"),
    "http_503": ("http", "HTTP 503.*queue_full: too many requests wait"),
    "context": ("context", r"exceeds the context of 16 tokens.*engine\.context"),
    "json_answer": ("protocol", "application/json.*caught fire"),
    "error_event": ("error_event", "caught fire"),
    "error_data": ("error_event", "caught fire"),
    "error_then_reset": ("error_event", "caught fire"),
    "abort": ("error_event", "abort"),
    "not_json": ("protocol", "not JSON.*broken"),
    "not_utf8": ("protocol", "not UTF-8"),
    "gzip": ("protocol", "compressed its stream .gzip."),
    "zero_tokens": ("zero_tokens", "produced no tokens where 7 were forced"),
    "wrong_token": ("wrong_tokens", "output token 3: forced 250, got 251"),
    "fewer_tokens": ("wrong_tokens", "stopped after 6 of 7"),
    "no_finish": ("cut", "after 7 tokens without (a finish_reason|its final event)"),
    "cut": ("cut", "broke off .* bytes of the answer came"),
    "cut_inside_event": ("cut", "inside an event"),
    "reset": ("cut", "broke off .*[Rr]eset"),
    "close_early": ("unreachable", "closed the connection without an answer"),
    "reset_early": ("unreachable", "closed the connection without an answer"),
    "stall": ("stalled", r"silent for 0\.1 s .* bytes of the answer came.*engine\.stall_timeout_s"),
    "stall_early": ("stalled", r"silent for 0\.1 s .no byte came"),
}
FAULTS = [(name, fault) for name in DIALECTS for fault in faults(name) if fault != "die"]  # test_fake.py: `die`


@pytest.mark.parametrize(("name", "fault"), FAULTS)
async def test_every_fault_is_told_apart_and_says_what_the_server_said(
    engine: FakeEngine, name: str, fault: str
) -> None:
    kind, said = EXPECTED[fault]
    async with client_of(engine, name, Forced(fault), stall_timeout_s=patience_s(fault, 0.1)) as client:
        with pytest.raises(EngineError, match=said) as raised:
            await client.turn(REQUEST)
    assert raised.value.kind == kind
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("fault", sorted(faults("ostinato").keys() - {"die"}))
async def test_the_turn_after_a_fault_is_whole(engine: FakeEngine, fault: str) -> None:
    forcing = Forced(fault)
    async with client_of(engine, "ostinato", forcing, stall_timeout_s=patience_s(fault, 0.05)) as client:
        with suppress(EngineError):
            await client.turn(REQUEST)
        forcing.fault = "plain"
        reply = await client.turn(REQUEST)
    assert tuple(id_ for chunk in reply.chunks for id_ in chunk.ids) == REQUEST.output_ids
