"""The way from httpx to stamped sockets."""

from collections.abc import AsyncIterator, Awaitable, Callable

import httpcore
import httpx

from engines.stamps import Exchange, SocketClock, current_exchange


class StampedTransport(httpx.AsyncBaseTransport):
    """httpx over stamped sockets: plain ``http://``, HTTP/1.1, connections kept alive as long as the server does.

    A request whose extensions hold an ``exchange`` (``Exchange``) has it filled in. The connections are kept here, as
    httpcore's pool counts all of them for each of them at each request: at 64 streams 0.2 ms of CPU a token. Raises
    httpx's exceptions, as httpx's own transport does.

    Args:
        keepalive_s: how long an idle connection is used again. Servers close one after 5 s (llama-server, uvicorn); a
            request must not cross with that.
    """

    def __init__(self, *, keepalive_s: float = 3.0) -> None:
        self._keepalive_s = keepalive_s
        self._idle: list[httpcore.AsyncHTTPConnection] = []
        self._busy: set[httpcore.AsyncHTTPConnection] = set()

    def connected(self) -> bool:
        """Whether the next request finds an open connection; it does if nothing else is awaited before it."""
        return any(not connection.has_expired() for connection in self._idle)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        exchange: Exchange | None = request.extensions.get("exchange")
        url = request.url
        outgoing = httpcore.Request(
            request.method,
            httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            connection, response = await self._exchanged(outgoing, exchange)
        except httpcore.WriteError:  # the server closed an idle connection just now; nothing went out on it
            try:
                connection, response = await self._exchanged(outgoing, exchange)
            except _HTTPCORE_ERRORS as error:
                raise _as_httpx(error, request) from error
        except _HTTPCORE_ERRORS as error:
            raise _as_httpx(error, request) from error

        async def done() -> None:
            await response.aclose()
            self._busy.discard(connection)
            if connection.is_idle():
                self._idle.append(connection)

        body = _Body(response, exchange, request, done)
        return httpx.Response(response.status, headers=response.headers, stream=body, extensions=response.extensions)

    async def _exchanged(
        self, outgoing: httpcore.Request, exchange: Exchange | None
    ) -> tuple[httpcore.AsyncHTTPConnection, httpcore.Response]:
        """Send on an open connection, or a new one; return it with the answer's head."""
        connection = await self._connection(outgoing.url.origin)
        token = current_exchange.set(exchange)
        try:
            return connection, await connection.handle_async_request(outgoing)
        except BaseException:
            self._busy.discard(connection)
            await connection.aclose()
            raise
        finally:
            current_exchange.reset(token)

    async def _connection(self, origin: httpcore.Origin) -> httpcore.AsyncHTTPConnection:
        while connection := self._take_idle(origin):
            if not connection.has_expired():
                break
            await connection.aclose()
        else:
            connection = httpcore.AsyncHTTPConnection(
                origin, keepalive_expiry=self._keepalive_s, network_backend=SocketClock()
            )
        self._busy.add(connection)
        return connection

    def _take_idle(self, origin: httpcore.Origin) -> httpcore.AsyncHTTPConnection | None:
        """Out of the idle ones before anything is awaited, so that no other request takes it too."""
        for connection in self._idle:
            if connection.has_expired() or connection.can_handle_request(origin):
                self._idle.remove(connection)
                return connection
        return None

    async def aclose(self) -> None:
        for connection in [*self._idle, *self._busy]:
            await connection.aclose()
        self._idle.clear()
        self._busy.clear()


class _Body(httpx.AsyncByteStream):
    def __init__(
        self,
        response: httpcore.Response,
        exchange: Exchange | None,
        request: httpx.Request,
        done: Callable[[], Awaitable[None]],
    ) -> None:
        self._response = response
        self._exchange = exchange
        self._request = request
        self._done = done

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._response.aiter_stream():
                yield part
        except _HTTPCORE_ERRORS as error:
            raise _as_httpx(error, self._request) from error
        if self._exchange is not None:
            self._exchange.end_ns = self._exchange.read_ns

    async def aclose(self) -> None:
        await self._done()


_HTTPCORE_ERRORS = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException)


def _as_httpx(error: Exception, request: httpx.Request) -> httpx.TransportError:
    """httpx names its transport errors as httpcore does."""
    name = type(error).__name__
    kind: type[httpx.TransportError] = getattr(httpx, name)
    return kind(str(error), request=request)
