"""One engine's client: sends a forced request, stamps the answer at the socket, reads it once it has ended."""

import asyncio
from types import TracebackType
from typing import Any, Self

import httpx
import orjson

from engines import sse
from engines.base import Dialect, EngineError, ForcedRequest, Forcing, Reply
from engines.complaint import complaint, server_said
from engines.stamps import Exchange
from engines.transport import StampedTransport

_HEALTH_TIMEOUT_S = 5.0
_HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream", "Accept-Encoding": "identity"}
_CLOSING = ("llamacpp",)
"""Dialects whose server closes a connection after each stream without having said so: a turn that is sent at once can
cross with that (1 of 2,000 on two busy cores). Asked to close, both sides know; the next turn gets a new one."""


class EngineClient:
    """Keeps its connections open between turns; use it as an async context manager.

    Args:
        url: the engine's base URL, plain ``http://``.
        dialect: how to ask and how to read the answer.
        forcing: how the engine is made to emit the recorded tokens.
        request_timeout_s: the longest a whole request may take.
        stall_timeout_s: the longest a stream may be silent.
        model: the name that each request gives to the model; None gives none.
        transport: where requests go instead of stamped sockets; it fills in each request's ``exchange`` extension.

    Raises:
        EngineError: ``setting`` when the URL is none that can be measured.
    """

    def __init__(
        self,
        url: str,
        dialect: Dialect,
        forcing: Forcing,
        *,
        request_timeout_s: float,
        stall_timeout_s: float,
        model: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if not url.startswith("http://"):
            raise EngineError(f"engine.url is {url!r}; give one that starts with http:// (TLS hides when bytes came)")
        self._url = url.rstrip("/")
        self._endpoint = httpx.URL(self._url + dialect.path)
        self._timeouts = httpx.Timeout(stall_timeout_s).as_dict()
        self._dialect = dialect
        self._headers = {**_HEADERS, "Connection": "close"} if dialect.name in _CLOSING else _HEADERS
        self._named = {} if model is None else {"model": model}
        self._forcing = forcing
        self._request_timeout_s = request_timeout_s
        self._stall_timeout_s = stall_timeout_s
        self._transport = transport or StampedTransport()
        self._http = httpx.AsyncClient(
            base_url=self._url,
            transport=self._transport,
            timeout=stall_timeout_s,
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def healthy(self, path: str) -> bool:
        """Whether the engine answers 200 there. Leaves a connection open for the next turn."""
        try:
            response = await self._http.get(path, timeout=_HEALTH_TIMEOUT_S)
        except httpx.RequestError:
            return False
        return response.status_code == httpx.codes.OK

    async def warm_up(self, request: ForcedRequest) -> None:
        """Send a request whose times nobody keeps: a server's first one is several times slower.

        Raises:
            EngineError: as ``turn`` does.
        """
        await self.turn(request)

    async def turn(self, request: ForcedRequest) -> Reply:
        """Replay one turn: arm the forcing, send, stamp, and after the last stream's end parse and verify.

        Raises:
            EngineError: ``unreachable``, ``http``, ``context``, ``error_event``, ``protocol``, ``cut``, ``stalled``,
                ``timeout``, or what ``Forcing.verify`` finds (``zero_tokens``, ``wrong_tokens``).
        """
        self._forcing.arm(request)
        exchanges: list[Exchange] = []
        for one in self._forcing.requests(request):
            exchange, broken = await self._exchange(one)
            exchanges.append(exchange)
            if broken:
                raise self._reason(exchange, broken)
        answers = [self._dialect.parse(sse.parse(exchange.reads)) for exchange in exchanges]
        first, last = exchanges[0], exchanges[-1]
        assert first.sent_ns is not None
        assert first.first_byte_ns is not None
        assert last.end_ns is not None
        ends_ns = [exchange.end_ns or last.end_ns for exchange in exchanges]
        answer = self._forcing.join(request, list(zip(answers, ends_ns, strict=True)))
        verified_by, server_token_ns = self._forcing.verify(request, answer)
        return Reply(
            sent_ns=first.sent_ns,
            first_byte_ns=first.first_byte_ns,
            end_ns=last.end_ns,
            chunks=answer.chunks,
            report=answer.report,
            verified_by=verified_by,
            server_token_ns=server_token_ns,
        )

    async def _exchange(self, request: ForcedRequest) -> tuple[Exchange, EngineError | None]:
        """Send one request and collect its answer; return how it broke off, if it did."""
        body = {**self._named, **self._dialect.body(request)}
        content = orjson.dumps(_merged(body, self._forcing.fields(request)))
        await self._open_connection()
        exchange = Exchange()
        response, broken = await self._send(content, exchange)
        if response is not None:
            _check_headers(response, exchange)
        return exchange, broken

    async def _open_connection(self) -> None:
        """A server closes idle connections after some seconds (uvicorn: 5); reopening is none of a turn's time."""
        if isinstance(self._transport, StampedTransport) and not self._transport.connected():
            await self.healthy("/health")

    async def _send(self, content: bytes, exchange: Exchange) -> tuple[httpx.Response | None, EngineError | None]:
        """Send and collect; return the answer's head, if it came, and how the exchange broke off, if it did."""
        request = httpx.Request(
            "POST",
            self._endpoint,
            content=content,
            headers=self._headers,
            extensions={"exchange": exchange, "timeout": self._timeouts},
        )
        response = None
        try:
            async with asyncio.timeout(self._request_timeout_s):
                # Past httpx's client, whose redirects, cookies and authentication no engine needs: they would take
                # the loop from the streams that arrive meanwhile, 0.4 ms at each start (benchmarks/client_error.py).
                response = await self._transport.handle_async_request(request)
                assert isinstance(response.stream, httpx.AsyncByteStream)
                try:
                    async for _ in response.stream:
                        pass
                finally:
                    await response.aclose()
        except TimeoutError:
            message = f"no whole answer within {self._request_timeout_s:g} s ({_progress(exchange)}); "
            message += "raise engine.request_timeout_s or replay shorter sessions"
            return response, EngineError(message, kind="timeout")
        except httpx.ReadTimeout:
            message = f"silent for {self._stall_timeout_s:g} s ({_progress(exchange)}); "
            message += "read the server's log, or raise engine.stall_timeout_s"
            return response, EngineError(message, kind="stalled")
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            message = f"nothing answers at {self._url} ({error}); start the server or set engine.url"
            return None, EngineError(message, kind="unreachable")
        except httpx.TransportError as error:
            return response, self._broken(error, exchange)
        return response, None

    def _broken(self, error: httpx.TransportError, exchange: Exchange) -> EngineError:
        if not exchange.closed:
            return EngineError(
                f"{self._url} does not speak HTTP ({error}); check engine.url and engine.port", kind="protocol"
            )
        if exchange.first_byte_ns is None:
            message = f"{self._url} closed the connection without an answer ({error}); read the server's log"
            return EngineError(message, kind="unreachable")
        message = f"the connection broke off ({_progress(exchange)}; {error}); read the server's log"
        return EngineError(message, kind="cut")

    def _reason(self, exchange: Exchange, broken: EngineError) -> EngineError:
        try:
            self._dialect.parse(sse.parse(exchange.reads))
        except EngineError as error:
            # What the server said before it broke off tells more than that it did.
            if error.kind in ("error_event", "context"):
                error.__cause__ = broken
                return error
        return broken


def _merged(body: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """The body with the fields; of a field that both hold as an object, both entries."""
    both = {
        name: {**body[name], **value}
        for name, value in fields.items()
        if isinstance(value, dict) and isinstance(body.get(name), dict)
    }
    return {**body, **fields, **both}


def _check_headers(response: httpx.Response, exchange: Exchange) -> None:
    if response.status_code != httpx.codes.OK:
        refusal = complaint(_body(exchange), "http")
        raise EngineError(f"HTTP {response.status_code}: {refusal}", kind=refusal.kind)
    if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise EngineError(
            f"the server compressed its stream ({encoding}), which hides when a token came; "
            "turn compression off there or in the proxy before it",
            kind="protocol",
        )
    if not (content_type := response.headers.get("Content-Type", "")).startswith("text/event-stream"):
        raise EngineError(
            f"the answer is {content_type or 'of no type'} and not an event stream: {server_said(_body(exchange))}; "
            "check engine.url and engine.dialect",
            kind="protocol",
        )


def _body(exchange: Exchange) -> bytes:
    return b"".join(data for _, data in exchange.reads)


def _progress(exchange: Exchange) -> str:
    if exchange.first_byte_ns is None:
        return "no byte came"
    return f"{len(_body(exchange))} bytes of the answer came"
