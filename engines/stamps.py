"""The socket clock: an httpcore network backend that knows when each byte left and reached the socket.

httpx and httpcore take their time between a socket and their caller (``benchmarks/client_error.py``), so the stamps
are taken below them, in the event loop's own callback.
"""

import asyncio
import math
import re
from collections import deque
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, cast

import httpcore

from engines.chunked import Chunked, one_chunk


@dataclass(slots=True)
class Exchange:
    """What one request saw at the socket; ``StampedTransport`` fills it in.

    All times are ``perf_counter_ns`` readings; None where it never came to that.
    """

    sent_ns: int | None = None
    """Taken right before the request, headers and body in one write, was handed to the kernel."""
    first_byte_ns: int | None = None
    """The answer's first byte, its status line."""
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    """The body's bytes, HTTP framing removed, one part a socket read, with its stamp."""
    end_ns: int | None = None
    """The read that held the answer's end."""
    closed: bool = False
    """The server closed or reset the connection before the answer's end was read."""
    read_ns: int = 0
    """The newest read so far."""


_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
_LAST_CHUNK = b"0\r\n\r\n"
_TICK_S = 0.05
current_exchange: ContextVar[Exchange | None] = ContextVar("current_exchange", default=None)
"""Where the request that is being sent keeps its stamps."""


class StampedStream(asyncio.Protocol, httpcore.AsyncNetworkStream):
    """One TCP connection. Each socket read is stamped as the loop delivers it.

    Of an exchange's answer httpcore gets the head as it comes and a chunked body when it is whole, as a single chunk:
    token by token, h11, httpcore and httpx would cost half as much CPU again as everything else
    (``benchmarks/client_error.py``). The body's reads are kept in the exchange, stamped. Nothing holds a fast server
    back: the harness keeps all bytes of an answer anyway.
    """

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lost = self._loop.create_future()
        self._waiter: asyncio.Future[None] | None = None
        self._arrived: deque[tuple[int, bytes]] = deque()
        self._eof_ns: int | None = None
        self._error: Exception | None = None
        self._outgoing: list[bytes] = []
        self._ready = b""
        self._exchange: Exchange | None = None
        self._head: bytes | None = None
        """What came of the answer's head; None once it is whole."""
        self._chunked: Chunked | None = None
        """The answer's body, once the head says that it is chunked."""

    # The event loop's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        # uvloop puts writes off to the end of the loop's turn unless they pass this limit.
        self._transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        self._arrived.append((perf_counter_ns(), data))
        if self._chunked is None or data.endswith(_LAST_CHUNK):
            self._wake()

    def eof_received(self) -> None:
        self._eof_ns = perf_counter_ns()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._error = error
        if self._eof_ns is None:
            self._eof_ns = perf_counter_ns()
        self._lost.set_result(None)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # httpcore's side.

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109
        """Hold the bytes until the answer is awaited: head and body go out in one write."""
        self._outgoing.append(buffer)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        if self._outgoing:
            self._send()
        self._take()
        while not self._ready and self._eof_ns is None:
            await self._arrival(math.inf if timeout is None else timeout)
            self._take()
        if not self._ready:
            self._end()
        data, self._ready = self._ready[:max_bytes], self._ready[max_bytes:]
        return data

    def _send(self) -> None:
        buffer = b"".join(self._outgoing)
        self._outgoing.clear()
        if self._transport.is_closing():  # uvloop raises a bare RuntimeError
            raise httpcore.WriteError("the server closed the connection before the request was sent")
        self._exchange = current_exchange.get()
        self._head, self._chunked = b"", None
        if self._exchange is not None:
            self._exchange.sent_ns = perf_counter_ns()
        self._transport.write(buffer)

    async def _arrival(self, timeout_s: float) -> None:
        """Wait until something came; for a body's tokens in the course of a tick, as nobody needs them sooner.

        Silence is counted in ticks. One that took a whole tick too long does not count: this process stood still
        (Ctrl-Z, a paused machine), and bytes may wait that the loop has not seen, or the engine stood still with it.
        """
        left_s = timeout_s
        while not self._arrived and self._eof_ns is None:
            if left_s <= 0:
                raise httpcore.ReadTimeout(f"no bytes for {timeout_s} s")
            began_s, tick_s = self._loop.time(), min(left_s, _TICK_S)
            self._waiter = self._loop.create_future()
            timer = self._loop.call_later(tick_s, self._wake)
            try:
                await self._waiter
            finally:
                self._waiter = None
                timer.cancel()
            if self._loop.time() - began_s < tick_s + _TICK_S:
                left_s -= tick_s

    def _take(self) -> None:
        """Sort what arrived into the exchange, until there is something for httpcore."""
        while self._arrived and not self._ready:
            t_ns, data = self._arrived.popleft()
            exchange = self._exchange
            if exchange is None:
                self._ready = data
                continue
            exchange.read_ns = t_ns
            if exchange.first_byte_ns is None:
                exchange.first_byte_ns = t_ns
            if self._head is not None:
                self._ready = self._take_head(self._head, t_ns, data)
            elif self._chunked is not None:
                self._ready = self._take_chunks(self._chunked, exchange, data)
            else:
                exchange.reads.append((t_ns, data))
                self._ready = data

    def _take_head(self, before: bytes, t_ns: int, data: bytes) -> bytes:
        head, end, rest = (before + data).partition(b"\r\n\r\n")
        if not end:
            self._head = before + data
            return data
        self._head = b"" if head.startswith(b"HTTP/1.1 1") else None  # 1xx: the answer's own head follows
        if self._head is None and _CHUNKED.search(head + b"\r\n"):
            self._chunked = Chunked()
        if rest:
            self._arrived.appendleft((t_ns, rest))
        return data[: len(data) - len(rest)]

    def _take_chunks(self, chunked: Chunked, exchange: Exchange, data: bytes) -> bytes:
        try:
            body = chunked.feed(data)
        except ValueError as error:
            raise httpcore.RemoteProtocolError(str(error)) from error
        if body:
            exchange.reads.append((exchange.read_ns, body))
        if not chunked.ended:
            return b""
        if chunked.left_over:
            self._arrived.appendleft((exchange.read_ns, chunked.left_over))
        return one_chunk(b"".join(part for _, part in exchange.reads))

    def _end(self) -> None:
        """The server closed the connection; return where that may end an answer."""
        if self._exchange is not None:
            assert self._eof_ns is not None
            self._exchange.closed = True
            self._exchange.read_ns = self._eof_ns
        if self._error is not None:
            raise httpcore.ReadError(str(self._error))
        if self._chunked is not None:
            raise httpcore.RemoteProtocolError("closed inside a chunked body")

    async def aclose(self) -> None:
        self._transport.abort()
        await asyncio.shield(self._lost)

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":  # on an idle connection: the server closed it, or speaks out of turn
            return self._eof_ns is not None or bool(self._arrived)
        return None


class SocketClock(httpcore.AsyncNetworkBackend):
    """Connects stamped streams."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,  # noqa: ARG002
    ) -> httpcore.AsyncNetworkStream:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                _, stream = await loop.create_connection(StampedStream, host, port)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"no connection in {timeout} s") from error
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        return stream

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
