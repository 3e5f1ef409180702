"""What a client does around a stream: timeouts, health, connections, what a server said. Streams: test_streams.py."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import orjson
import pytest

from engines.base import EngineError, ForcedRequest, Reply
from engines.client import EngineClient
from engines.complaint import complaint
from engines.dialects.registry import dialect
from engines.fake.server import FakeEngine, FakeSettings, in_thread
from engines.forcing.field import FieldForcing
from engines.stamps import Exchange

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Replays run on uvloop; asyncio's own loop must give the same."""
    return "asyncio", {"use_uvloop": request.param}


REQUEST = ForcedRequest(prompt_ids=tuple(range(10)), output_ids=(5, 17, 3, 250, 99, 4, 8))


class Forced(FieldForcing):
    """``fault`` names the stream that the fake engine shall send."""

    def __init__(self, fault: str = "plain") -> None:
        self.fault = fault
        self.armed: list[ForcedRequest] = []

    def arm(self, request: ForcedRequest) -> None:
        self.armed.append(request)

    def fields(self, request: ForcedRequest) -> dict[str, Any]:
        return super().fields(request) | {"fault": self.fault}


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEngine]:
    with in_thread(FakeSettings(prefill_s=0.004, decode_s=0.001)) as serving:
        yield serving


def client_of(
    url: str, forcing: Forced | None = None, *, request_timeout_s: float = 5.0, stall_timeout_s: float = 2.0
) -> EngineClient:
    return EngineClient(
        url,
        dialect("ostinato"),
        forcing or Forced(),
        request_timeout_s=request_timeout_s,
        stall_timeout_s=stall_timeout_s,
    )


def ids(reply: Reply) -> tuple[int, ...]:
    return tuple(token for chunk in reply.chunks for token in chunk.ids)


async def test_a_request_that_takes_too_long_is_a_timeout() -> None:
    with in_thread(FakeSettings(decode_s=0.05)) as slow:
        async with client_of(slow.url, request_timeout_s=0.12) as client:
            with pytest.raises(EngineError, match=r"within 0\.12 s.*engine\.request_timeout_s") as raised:
                await client.turn(REQUEST)
    assert raised.value.kind == "timeout"


async def test_an_engine_that_is_down_says_what_to_do() -> None:
    with in_thread(FakeSettings()) as engine:
        url = engine.url
    async with client_of(url) as client:
        assert not await client.healthy("/health")
        with pytest.raises(EngineError, match=r"nothing answers at .*start the server or set engine\.url") as raised:
            await client.turn(REQUEST)
    assert raised.value.kind == "unreachable"


async def test_health_is_status_200_only() -> None:
    with in_thread(FakeSettings(load_s=60.0)) as loading:
        async with client_of(loading.url) as client:
            assert not await client.healthy("/health")
            assert not await client.healthy("/nowhere")
            assert await client.healthy("/v1/models")


async def test_forcing_is_armed_before_the_request_is_sent(engine: FakeEngine) -> None:
    forcing = Forced()
    async with client_of(engine.url, forcing) as client:
        await client.warm_up(REQUEST)
    assert forcing.armed == [REQUEST]


async def test_the_next_turn_reuses_all_but_the_last_output_token() -> None:
    first = ForcedRequest(prompt_ids=tuple(range(1000, 1040)), output_ids=(7, 8, 9))
    second = ForcedRequest(prompt_ids=(*first.prompt_ids, *first.output_ids, 50, 51), output_ids=(1,))
    with in_thread(FakeSettings()) as engine:
        async with client_of(engine.url) as client:
            await client.turn(first)
            report = (await client.turn(second)).report
    assert report.cached_tokens == 42
    assert report.prefilled_tokens == 3  # two new ones and the last output token


async def test_sessions_at_once_are_kept_apart(engine: FakeEngine) -> None:
    requests = [ForcedRequest(prompt_ids=(k, 1, 2), output_ids=(k, k + 1, k + 2)) for k in range(2000, 2012)]
    async with client_of(engine.url) as client:
        replies = await asyncio.gather(*map(client.turn, requests))
    assert [ids(reply) for reply in replies] == [request.output_ids for request in requests]


async def test_a_turn_finds_an_open_connection_after_the_server_closed_the_idle_one() -> None:
    asked: list[list[str]] = []

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines: list[str] = []
        asked.append(lines)
        while head := await reader.readuntil(b"\r\n\r\n"):
            lines.append(head.decode().split(" HTTP")[0])
            if lines[-1].startswith("POST"):
                break
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        events = b'data: {"choices": [{"token_ids": [5, 17, 3, 250, 99, 4, 8], "finish_reason": "length"}]}\n\n'
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(events)
        )
        writer.write(events)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    async with server, client_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
        for _ in range(2):
            await client.turn(REQUEST)
            await asyncio.sleep(0.02)
    assert asked == [["GET /health", "POST /v1/completions"]] * 2


async def test_only_plain_http_is_measured() -> None:
    with pytest.raises(EngineError, match=r"engine\.url is 'https://x'"):
        client_of("https://x")


async def test_a_client_given_up_in_the_middle_leaves_no_connection_behind() -> None:
    with in_thread(FakeSettings(decode_s=0.05)) as slow:
        async with client_of(slow.url) as client:
            task = asyncio.create_task(client.turn(REQUEST))
            await asyncio.sleep(0.08)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await client.healthy("/health")


# Without sockets: what a transport may hand over that no server of ours does.


def answering(fill: Callable[[httpx.Request, Exchange], httpx.Response]) -> httpx.MockTransport:
    return httpx.MockTransport(lambda request: fill(request, request.extensions["exchange"]))


async def streamed() -> AsyncIterator[bytes]:
    """The body itself is in the exchange."""
    yield b""


async def turn_over(transport: httpx.MockTransport) -> Reply:
    client = EngineClient(
        "http://engine",
        dialect("ostinato"),
        Forced(),
        request_timeout_s=5,
        stall_timeout_s=5,
        transport=transport,
    )
    async with client:
        return await client.turn(REQUEST)


async def test_the_reply_carries_the_stamps_of_the_exchange() -> None:
    def fill(request: httpx.Request, exchange: Exchange) -> httpx.Response:
        asked = orjson.loads(request.content)
        exchange.sent_ns, exchange.first_byte_ns, exchange.end_ns = 100, 200, 900
        for k, token in enumerate(asked["forced_tokens"]):
            data = orjson.dumps({"choices": [{"text": "", "token_ids": [token], "finish_reason": None}]})
            exchange.reads.append((300 + k, b"data: " + data + b"\n\n"))
        exchange.reads.append((900, b'data: {"choices": [{"finish_reason": "length"}]}\n\n'))
        return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, content=streamed())

    reply = await turn_over(answering(fill))
    assert (reply.sent_ns, reply.first_byte_ns, reply.end_ns) == (100, 200, 900)
    assert [chunk.t_ns for chunk in reply.chunks] == [300, 301, 302, 303, 304, 305, 306]


async def test_an_error_page_is_cut_to_one_line() -> None:
    def fill(request: httpx.Request, exchange: Exchange) -> httpx.Response:
        exchange.reads.append((1, b"<html>\n" + b"Bad gateway\n" * 500))
        return httpx.Response(502, content=streamed())

    with pytest.raises(EngineError, match="HTTP 502: the server said <html> Bad gateway") as raised:
        await turn_over(answering(fill))
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it", "context"),
        ("This model's maximum context length is 16384 tokens. However, you requested 122946 tokens", "context"),
        ("The prompt (total length 25938) is too long to fit into the model (context length 4096).", "context"),
        ("The input (9000 tokens) is longer than the model's context length (8192 tokens).", "context"),
        ("Input prompt (36893 tokens) is too long and exceeds limit of 1000", "context"),
        ("9 prompt tokens + max_tokens 9 exceed the context of 16 tokens", "context"),
        ("CUDA error: the context is destroyed", "http"),
        ("the queue is full; try again later", "http"),
    ],
)
async def test_a_prompt_that_does_not_fit_is_recognised_in_each_engines_words(said: str, kind: str) -> None:
    for body in ({"error": {"message": said, "type": "x", "code": 400}}, {"message": said}, {"detail": said}, said):
        payload = body if isinstance(body, str) else orjson.dumps(body)
        error = complaint(payload, "http")
        assert error.kind == kind
        assert re.search(re.escape(said), str(error))
