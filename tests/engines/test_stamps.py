"""The socket clock, against a server whose every byte is scripted."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from engines.stamps import Exchange
from engines.transport import StampedTransport

pytestmark = pytest.mark.anyio


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Replays run on uvloop; asyncio's own loop must give the same."""
    return "asyncio", {"use_uvloop": request.param}


Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[str]:
    """Run ``script`` for each connection."""
    writers = []

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await script(reader, writer)

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()
        for writer in writers:
            writer.close()


async def request_of(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return head + await reader.readexactly(length)


def sending(*pieces: bytes, pause_s: float = 0.01, sent_ns: list[int] | None = None) -> Script:
    """Answer each request with the pieces, a pause between them, so that each is a read of its own."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                await request_of(reader)
            except asyncio.IncompleteReadError:
                return
            for piece in pieces:
                assert piece, "an empty piece is written after the answer's end, to a client that may have left"
                if sent_ns is not None:
                    sent_ns.append(time.perf_counter_ns())
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)

    return script


async def post(client: httpx.AsyncClient, url: str, body: bytes = b"{}") -> Exchange:
    exchange = Exchange()
    async with client.stream("POST", url, content=body, extensions={"exchange": exchange}) as response:
        async for _ in response.aiter_raw():
            pass
    return exchange


@asynccontextmanager
async def stamped() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=StampedTransport(), timeout=5.0, trust_env=False) as client:
        yield client


async def test_every_part_has_the_stamp_of_the_read_that_held_it() -> None:
    sent: list[int] = []
    pieces = (
        HEAD,
        b"3\r\none\r\n3\r\ntwo\r\n",  # two chunks in a read
        b"a\r\nthr",  # a chunk over three reads
        b"ee f",
        b"our\r\n4\r",  # a chunk's size line over two reads
        b"\nfive\r\n0\r\n\r\n",
    )
    async with serving(sending(*pieces, sent_ns=sent)) as url, stamped() as client:
        exchange = await post(client, url)
    assert [data for _, data in exchange.reads] == [b"onetwo", b"thr", b"ee f", b"our", b"five"]
    read_of_part = [1, 2, 3, 4, 5]
    for (t_ns, _), k in zip(exchange.reads, read_of_part, strict=True):
        assert sent[k] < t_ns
        assert k == 5 or t_ns < sent[k + 1]
    assert exchange.end_ns == exchange.reads[-1][0]
    assert exchange.sent_ns is not None
    assert exchange.first_byte_ns is not None
    assert exchange.sent_ns < sent[0] < exchange.first_byte_ns < sent[1]


@pytest.mark.parametrize("cut", range(1, 36, 3))
async def test_a_body_split_anywhere_keeps_its_bytes_in_order_of_time(cut: int) -> None:
    wire = b"5\r\nfirst\r\n6\r\nsecond\r\n5\r\nthird\r\n0\r\n\r\n"
    async with serving(sending(HEAD, wire[:cut], wire[cut:], pause_s=0.002)) as url, stamped() as client:
        exchange = await post(client, url)
    assert b"".join(data for _, data in exchange.reads) == b"firstsecondthird"
    stamps = [t_ns for t_ns, _ in exchange.reads]
    assert stamps == sorted(stamps)


async def test_a_reader_that_is_late_does_not_make_the_stamps_late() -> None:
    sent: list[int] = []
    pieces = (HEAD, b"1\r\na\r\n", b"1\r\nb\r\n", b"0\r\n\r\n")
    async with serving(sending(*pieces, sent_ns=sent, pause_s=0.005)) as url, stamped() as client:
        exchange = Exchange()
        async with client.stream("POST", url, content=b"{}", extensions={"exchange": exchange}) as response:
            await asyncio.sleep(0.05)
            async for _ in response.aiter_raw():
                pass
    assert sent[1] < exchange.reads[0][0] < sent[2] < exchange.reads[1][0] < sent[3]


async def test_a_second_request_uses_the_open_connection() -> None:
    connections = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await sending(HEAD + b"2\r\nhi\r\n0\r\n\r\n", pause_s=0)(reader, writer)

    transport = StampedTransport()
    async with serving(script) as url, httpx.AsyncClient(transport=transport, trust_env=False) as client:
        assert not transport.connected()
        await post(client, url)
        assert transport.connected()
        assert (await post(client, url)).reads[0][1] == b"hi"
    assert len(connections) == 1


async def test_head_and_body_of_a_request_leave_in_one_write() -> None:
    read: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        read.append(await reader.read(65536))
        writer.write(HEAD + b"0\r\n\r\n")

    async with serving(script) as url, stamped() as client:
        await post(client, url, b'{"prompt":[1,2,3]}')
    assert read[0].endswith(b'{"prompt":[1,2,3]}')


async def test_a_request_larger_than_the_socket_buffer_arrives_whole() -> None:
    read: list[bytes] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        read.append(await request_of(reader))
        writer.write(HEAD + b"0\r\n\r\n")

    body = bytes(range(256)) * 40_000
    async with serving(script) as url, stamped() as client:
        await post(client, url, body)
    assert read[0].endswith(b"\r\n\r\n" + body)


async def test_a_body_larger_than_one_read_of_httpcore_is_whole() -> None:
    data = bytes(range(256)) * 2_000
    async with serving(sending(HEAD, b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))) as url, stamped() as client:
        exchange = await post(client, url)
    assert b"".join(part for _, part in exchange.reads) == data


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n"], ids=["length", "close"]
)
async def test_bodies_that_are_not_chunked_are_stamped_too(head: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        for piece in (head, b"ab", b"cd"):
            writer.write(piece)
            await asyncio.sleep(0.005)
        writer.close()

    async with serving(script) as url, stamped() as client:
        exchange = await post(client, url)
    assert [data for _, data in exchange.reads] == [b"ab", b"cd"]
    assert exchange.reads[0][0] < exchange.reads[1][0]
    assert exchange.end_ns is not None


async def test_silence_is_a_read_timeout() -> None:
    async with serving(sending(HEAD, b"1\r\na\r\n")) as url, stamped() as client:
        with pytest.raises(httpx.ReadTimeout, match=r"no bytes for 0\.1 s"):
            async with client.stream("POST", url, content=b"{}", timeout=0.1) as response:
                await response.aread()


@pytest.mark.parametrize("cut", range(1, len(HEAD) + 8, 5))
async def test_a_head_split_anywhere_is_one_answer(cut: int) -> None:
    wire = b"HTTP/1.1 103 Early Hints\r\n\r\n" + HEAD + b"5\r\nfirst\r\n0\r\n\r\n"
    async with serving(sending(wire[:cut], wire[cut:], pause_s=0.002)) as url, stamped() as client:
        exchange = await post(client, url)
    assert b"".join(data for _, data in exchange.reads) == b"first"


async def test_the_end_is_found_behind_trailers_and_in_two_reads() -> None:
    for last in ((b"0\r\nServer-Timing: 5\r\n\r\n",), (b"0\r\n", b"\r\n")):
        async with serving(sending(HEAD, b"1\r\na\r\n", *last)) as url, stamped() as client:
            exchange = await post(client, url)
        assert [data for _, data in exchange.reads] == [b"a"]
        assert exchange.end_ns is not None
        assert exchange.end_ns > exchange.reads[-1][0]


async def test_httpx_reads_the_same_body() -> None:
    async with serving(sending(HEAD, b"1\r\na\r\n", b"2\r\nbc\r\n", b"0\r\n\r\n")) as url, stamped() as client:
        response = await client.post(url, content=b"{}", extensions={"exchange": Exchange()})
    assert response.content == b"abc"


async def test_a_server_that_speaks_beyond_its_answer_gets_a_new_connection() -> None:
    async with serving(sending(HEAD + b"1\r\na\r\n0\r\n\r\nHTTP/1.1 200 OK", pause_s=0)) as url:
        transport = StampedTransport()
        async with httpx.AsyncClient(transport=transport, trust_env=False) as client:
            for _ in range(2):
                assert [data for _, data in (await post(client, url)).reads] == [b"a"]
                assert not transport.connected()


async def test_illegal_chunks_are_a_protocol_error() -> None:
    async with serving(sending(HEAD, b"1\r\nabc\r\n", b"0\r\n\r\n")) as url, stamped() as client:
        exchange = Exchange()
        with pytest.raises(httpx.RemoteProtocolError, match="longer than its size"):
            await client.post(url, content=b"{}", extensions={"exchange": exchange})
    assert not exchange.closed


async def test_a_closed_connection_is_told_from_illegal_http() -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.close()

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(b"220 smtp.example.org\r\n\r\n")

    for script, closed in ((close, True), (babble, False)):
        exchange = Exchange()
        async with serving(script) as url, stamped() as client:
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post(url, content=b"{}", extensions={"exchange": exchange})
        assert exchange.closed is closed


async def test_a_connection_that_the_server_closed_while_idle_is_not_used_again() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(HEAD + b"2\r\nhi\r\n0\r\n\r\n")
        await writer.drain()
        writer.close()

    transport = StampedTransport()
    async with serving(once) as url, httpx.AsyncClient(transport=transport, trust_env=False) as client:
        await post(client, url)
        await asyncio.sleep(0.02)
        assert not transport.connected()
        assert (await post(client, url)).reads[0][1] == b"hi"


async def test_a_connection_that_closes_just_as_a_request_takes_it_is_replaced() -> None:
    transport = StampedTransport()
    script = sending(HEAD + b"2\r\nhi\r\n0\r\n\r\n", pause_s=0)
    async with serving(script) as url, httpx.AsyncClient(transport=transport, trust_env=False) as client:
        await post(client, url)
        (idle,) = transport._idle
        idle._connection._network_stream._transport.close()  # its end is told at the loop's next turn
        assert transport.connected()
        assert (await post(client, url)).reads[0][1] == b"hi"


async def test_requests_at_once_after_all_connections_expired_each_get_a_new_one() -> None:
    script = sending(HEAD + b"2\r\nhi\r\n0\r\n\r\n", pause_s=0)
    transport = StampedTransport(keepalive_s=0.01)
    async with serving(script) as url, httpx.AsyncClient(transport=transport, trust_env=False) as client:
        for _ in range(3):
            exchanges = await asyncio.gather(*(post(client, url) for _ in range(6)))
            assert [exchange.reads[0][1] for exchange in exchanges] == [b"hi"] * 6
            await asyncio.sleep(0.03)


async def test_nobody_listening_is_a_connect_error() -> None:
    async with serving(sending()) as url:
        pass
    async with stamped() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(url)
