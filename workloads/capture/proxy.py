"""Passes requests on to a server and its answers back, and hands the model calls among them to a recorder."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import h11

from workloads.capture.exchange import READABLE_ENCODINGS, Ending, Exchange, Headers
from workloads.capture.side import Side
from workloads.capture.upstream import READ_LIMIT_BYTES, Upstream
from workloads.session import WorkloadError

RECORDED = (b"/chat/completions", b"/completions")
HOP_BY_HOP = {b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade"}
"""Headers of one connection (RFC 9110, section 7.6.1); framing is h11's."""


class _ServerBrokeOffError(Exception):
    pass


class _ClientLeftError(Exception):
    pass


@dataclass(slots=True)
class _Call:
    """What was seen so far of one request and its answer."""

    request: h11.Request
    sent_s: float
    is_recorded: bool
    request_body: list[bytes] = field(default_factory=list)
    response: h11.Response | None = None
    response_body: list[bytes] = field(default_factory=list)
    first_s: float | None = None
    ended_s: float | None = None
    ending: Ending = Ending.STOPPED
    reason: str = ""

    def exchange(self) -> Exchange:
        return Exchange(
            target=self.request.target,
            request_headers=self.request.headers.raw_items(),
            request_body=b"".join(self.request_body),
            status=self.response.status_code if self.response else None,
            response_headers=self.response.headers.raw_items() if self.response else (),
            response_body=b"".join(self.response_body),
            ending=self.ending,
            reason=self.reason,
            sent_s=self.sent_s,
            first_s=self.first_s,
            ended_s=self.ended_s or time.perf_counter(),
        )


class Proxy:
    """Each client connection has one of its own to the server, which closes when either side's does."""

    def __init__(self, upstream: Upstream, record: Callable[[Exchange], None]) -> None:
        self._upstream = upstream
        self._record = record
        self._clients: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Start to take connections.

        Raises:
            OSError: the port is taken or may not be used.
        """
        return await asyncio.start_server(self._accept, host, port, limit=READ_LIMIT_BYTES)

    async def stop(self) -> None:
        """Break off what is under way, recording what came of it."""
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(Side(h11.SERVER, reader, writer)))
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)

    async def _serve(self, client: Side) -> None:
        """Answer the requests of one client until it leaves."""
        server: Side | None = None
        try:
            while isinstance(request := await client.event(), h11.Request):
                server = await self._answer(request, client, server)
                if not client.next_cycle():
                    break
        except h11.RemoteProtocolError as error:
            if client.http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                with suppress(OSError):
                    await _refuse(client, error.error_status_hint, f"the proxy can't read this request: {error}")
        except (OSError, _ClientLeftError, _ServerBrokeOffError):
            pass  # recorded; the client sees what it would have seen without the proxy
        finally:
            client.close()
            if server is not None:
                server.close()

    async def _answer(self, request: h11.Request, client: Side, server: Side | None) -> Side | None:
        """Answer one request; return the connection to the server if it can take another."""
        path = request.target.partition(b"?")[0].rstrip(b"/")
        call = _Call(request, time.perf_counter(), request.method == b"POST" and path.endswith(RECORDED))
        keep = False
        try:
            if server is None or not server.is_open:
                server = Side(h11.CLIENT, *await self._upstream.connect())
            await self._exchange(call, client, server)
            keep = server.next_cycle()
        except WorkloadError as error:
            call.ending, call.reason = Ending.UNREACHABLE, str(error)
            await _finish_request(call, client)
            await _refuse(client, 502, call.reason)
        except _ServerBrokeOffError as error:
            call.ending, call.reason = Ending.SERVER_BROKE_OFF, str(error)
            if call.response is not None:
                raise
            await _finish_request(call, client)
            await _refuse(client, 502, f"{call.ending.value}: {call.reason}")
        except _ClientLeftError:
            call.ending = Ending.CLIENT_LEFT
            raise
        finally:
            if server is not None and not keep:
                server.close()
            if call.is_recorded:
                self._record(call.exchange())
        return server if keep else None

    async def _exchange(self, call: _Call, client: Side, server: Side) -> None:
        """Pass both ways at once, so that a client that leaves is noticed while the server computes."""
        headers = _passed_on(call.request.headers.raw_items(), call.is_recorded)
        request = h11.Request(
            method=call.request.method,
            target=self._upstream.prefix.encode() + call.request.target,
            headers=[(b"Host", self._upstream.host_header), *headers],
        )
        there = asyncio.create_task(_upload(call, request, client, server))
        back = asyncio.create_task(_download(call, client, server))
        try:
            done, _ = await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            await (back if back in done else there)
        finally:
            for task in (there, back):
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)


async def _upload(call: _Call, request: h11.Request, client: Side, server: Side) -> None:
    """Pass the request on, then wait for the client to leave: ends with an exception or is cancelled."""
    with suppress(OSError):  # a server that refuses early stops reading; its answer says why
        await server.send(request)
    if client.http.they_are_waiting_for_100_continue:
        await client.send(h11.InformationalResponse(status_code=100, headers=[]))
    async for event in _request_events(call, client):
        with suppress(OSError):
            await server.send(event)
    await client.left()
    raise _ClientLeftError


async def _finish_request(call: _Call, client: Side) -> None:
    """Read the rest of a request that nobody will answer: a client that still sends would not read a refusal."""
    if client.http.they_are_waiting_for_100_continue:
        return
    if client.http.their_state is h11.SEND_BODY:
        async for _ in _request_events(call, client):
            pass


async def _request_events(call: _Call, client: Side) -> AsyncIterator[Any]:
    """Yield what is left of a request, keeping its body."""
    try:
        while True:
            event = await client.event()
            if isinstance(event, h11.Data) and call.is_recorded:
                call.request_body.append(event.data)
            yield event
            if isinstance(event, h11.EndOfMessage):
                return
    except (h11.RemoteProtocolError, OSError) as error:
        raise _ClientLeftError from error


async def _download(call: _Call, client: Side, server: Side) -> None:
    """Pass the answer back as it comes."""
    while call.ended_s is None:
        try:
            events = await server.events()
        except (h11.RemoteProtocolError, OSError) as error:
            raise _ServerBrokeOffError(str(error) or "the connection was closed") from error
        passed = []
        for event in events:
            if isinstance(event, h11.ConnectionClosed):
                raise _ServerBrokeOffError("the connection was closed")
            if isinstance(event, h11.Data):
                call.first_s = call.first_s or time.perf_counter()
                if call.is_recorded:
                    call.response_body.append(event.data)
            elif isinstance(event, h11.Response):
                call.response = event
                headers = _passed_on(event.headers.raw_items(), recorded=False)
                event = h11.Response(status_code=event.status_code, headers=headers, reason=event.reason)
            elif isinstance(event, h11.EndOfMessage):
                call.ended_s, call.ending = time.perf_counter(), Ending.WHOLE
            if not isinstance(event, h11.InformationalResponse):  # the client has not asked for any
                passed.append(event)
        try:
            await client.send(*passed)
        except OSError as error:
            raise _ClientLeftError from error


def _passed_on(headers: Headers, recorded: bool) -> list[tuple[bytes, bytes]]:
    """Return the headers for the other side; a recorded answer may be compressed only so that it can be read."""
    kept = []
    for name, value in headers:
        lower = name.lower()
        if lower in HOP_BY_HOP or lower in (b"host", b"expect"):
            continue
        if recorded and lower == b"accept-encoding":
            wanted = [one for one in value.split(b",") if one.split(b";")[0].strip().lower() in READABLE_ENCODINGS]
            kept.append((name, b",".join(wanted).strip() or b"identity"))
        else:
            kept.append((name, value))
    return kept


async def _refuse(client: Side, status: int, message: str) -> None:
    body = json.dumps({"error": {"message": message, "type": "capture_proxy", "code": status}}).encode()
    headers = [(b"Content-Type", b"application/json"), (b"Content-Length", str(len(body)).encode())]
    response = h11.Response(status_code=status, headers=headers, reason=b"")
    await client.send(response, h11.Data(data=body), h11.EndOfMessage())
