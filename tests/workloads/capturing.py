"""A scripted server behind a capturing proxy, and a client of the two."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from workloads.capture.exchange import Exchange
from workloads.capture.proxy import Proxy
from workloads.capture.recorder import Recorder
from workloads.capture.upstream import Upstream

USER = {"role": "user", "content": "hi"}
PLAIN = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}]}
STREAM = [
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"lo"}}]}\r\n\r\n',
    'data: {"choices":[{"index":0,"delta":{"content":"ök"}}]}\n\n'.encode(),
    b": ping\n\n",
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"look_up",'
    b'"arguments":"{}"}}]},"finish_reason":"tool_calls"}]}\n\n',
    b"data: [DONE]\n\n",
]
STREAM_MESSAGE = {
    "role": "assistant",
    "content": "loök",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}],
}
CHAT = "/v1/chat/completions"
Serve = Callable[[asyncio.StreamWriter, bytes], Awaitable[None]]


def plain(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> Serve:
    async def serve(writer: asyncio.StreamWriter, _: bytes) -> None:
        lines = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *headers]
        writer.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)

    return serve


def completion(value: Any = PLAIN, **options: Any) -> Serve:
    return plain(json.dumps(value).encode(), b"Content-Type: application/json", **options)


def streamed(
    parts: list[bytes], *, gate: asyncio.Event | None = None, cut_after: int | None = None, headers: bytes = b""
) -> Serve:
    """Send each part as a chunk; after the first, wait for the gate; or break off after so many."""

    async def serve(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
            + headers
            + b"\r\n"
        )
        for number, part in enumerate(parts):
            if number == cut_after:
                await writer.drain()
                writer.close()
                return
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            if number == 0 and gate is not None:
                await gate.wait()
        writer.write(b"0\r\n\r\n")

    return serve


@dataclass
class Server:
    """Serves one script after the other, whatever is asked, and keeps what was asked."""

    scripts: list[Serve]
    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """A connection ended."""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(x[15:]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length:")), 0
                )
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(length))
                await self.scripts.pop(0)(writer, head)
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.left.set()
            writer.close()


@dataclass
class Captured:
    server: Server
    recorder: Recorder
    proxy: Proxy
    port: int
    client: httpx.AsyncClient
    recorded: asyncio.Event
    """A call was handed to the recorder."""

    async def chat(self, *messages: dict[str, Any], **fields: Any) -> httpx.Response:
        return await self.client.post(CHAT, json={"model": "m", "messages": list(messages)} | fields)

    async def lines(self) -> list[dict[str, Any]]:
        """End the recording and return what it holds."""
        await self.client.aclose()
        await self.proxy.stop()
        self.recorder.close()
        return [json.loads(line) for line in self.recorder.path.read_text().splitlines()]

    def summary(self) -> str:
        return "\n".join(self.recorder.summary())


@asynccontextmanager
async def capturing(folder: Path, *scripts: Serve, url: str = "http://127.0.0.1:{}") -> AsyncIterator[Captured]:
    server = Server(list(scripts))
    async with await asyncio.start_server(server, "127.0.0.1", 0) as listening:
        upstream = Upstream.parse(url.format(listening.sockets[0].getsockname()[1]))
        recorder = Recorder(folder / "calls.jsonl", clock_start_s=time.time() - time.perf_counter())
        recorded = asyncio.Event()

        def record(exchange: Exchange) -> None:
            recorder.add(exchange)
            recorded.set()

        proxy = Proxy(upstream, record)
        async with await proxy.listen("127.0.0.1", 0) as front:
            port = front.sockets[0].getsockname()[1]
            base = f"http://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=5) as client:
                yield Captured(server, recorder, proxy, port, client, recorded)
            listening.close()
            await proxy.stop()
            recorder.close()


async def raw(port: int, request: bytes) -> bytes:
    """Return all bytes that come back until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    data = await asyncio.wait_for(reader.read(-1), 5)
    writer.close()
    return data


def posted(body: bytes, *headers: bytes, path: bytes = CHAT.encode()) -> bytes:
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
