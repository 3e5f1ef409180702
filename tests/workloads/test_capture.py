import asyncio
import gzip
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from workloads import store
from workloads.capture.exchange import Exchange
from workloads.capture.proxy import Proxy
from workloads.capture.recorder import Recorder
from workloads.capture.redact import HIDDEN
from workloads.capture.upstream import Upstream
from workloads.cli import main
from workloads.conversation import Message
from workloads.formats import chat_log, conversation_json, vcr
from workloads.render import Renderer
from workloads.sample_paths import CONVERSATIONS, TOKENIZER
from workloads.session import WorkloadError

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


@pytest.mark.anyio
async def test_an_agents_conversation_becomes_one_session_with_its_wait(tmp_path: Path) -> None:
    result = {"role": "tool", "tool_call_id": "c", "content": "found"}
    async with capturing(tmp_path, streamed(STREAM), completion()) as captured:
        await captured.chat(USER, stream=True)
        await asyncio.sleep(0.05)
        await captured.chat(USER, STREAM_MESSAGE, result)
        first, second = await captured.lines()
    assert list(first) == ["session_id", "time_s", "request", "response", "duration_s", "ttft_s"]
    assert first["session_id"] == second["session_id"]
    assert first["response"] == b"".join(STREAM).decode()
    assert second["response"] == PLAIN
    assert abs(first["time_s"] - time.time()) < 10
    wait_s = second["time_s"] - first["time_s"] - first["duration_s"]
    assert 0.05 <= wait_s < 1
    assert captured.recorder.waits_s == pytest.approx([wait_s], abs=1e-5)
    assert captured.summary().startswith("recorded 2 calls of 1 session in ")
    (one,) = chat_log.load(captured.recorder.path)
    assert [(message.role, message.content) for message in one.messages] == [
        ("user", "hi"),
        ("assistant", "loök"),
        ("tool", "found"),
        ("assistant", "yes"),
    ]
    assert one.messages[2].time_s == second["time_s"]


@pytest.mark.anyio
async def test_bodies_pass_byte_for_byte_in_both_directions(tmp_path: Path) -> None:
    sent = b'{"messages" : [{"role":"user","content":"h\\u0069"}],\n "n": 1.0}'
    answers = [b'{"choices":  []}\n', bytes(range(256)) * 300]
    async with capturing(tmp_path, plain(answers[0]), plain(answers[1], b"Server: own")) as captured:
        answer = await captured.client.post(CHAT, content=sent)
        model = await captured.client.get("/v1/models?limit=2", headers={"X-Own": "Kept"})
        assert (answer.content, model.content, model.headers["server"]) == (*answers, "own")
        assert captured.server.bodies == [sent, b""]
        assert captured.server.heads[1].startswith(b"GET /v1/models?limit=2 HTTP/1.1\r\n")
        assert b"X-Own: Kept\r\n" in captured.server.heads[1]
        assert captured.server.connections == 1, "kept alive"
        assert len(await captured.lines()) == 1, "only model calls are recorded"


@pytest.mark.anyio
async def test_chunks_pass_as_they_come_with_their_bounds(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with capturing(tmp_path, streamed(STREAM, gate=gate)) as captured:
        reader, writer = await asyncio.open_connection("127.0.0.1", captured.port)
        writer.write(posted(json.dumps({"messages": [USER], "stream": True}).encode()))
        await reader.readuntil(b"\r\n\r\n")
        first = await asyncio.wait_for(reader.readexactly(len(STREAM[0]) + 6), 5)
        assert first == b"%x\r\n%b\r\n" % (len(STREAM[0]), STREAM[0]), "before the server sent another"
        gate.set()
        rest = await reader.readuntil(b"\r\n0\r\n\r\n")
        assert rest == b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in STREAM[1:]) + b"0\r\n\r\n"
        writer.close()


@pytest.mark.anyio
async def test_a_client_that_leaves_ends_the_servers_work_and_what_came_is_kept(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with capturing(tmp_path, streamed(STREAM, gate=gate), completion()) as captured:
        reader, writer = await asyncio.open_connection("127.0.0.1", captured.port)
        writer.write(posted(json.dumps({"messages": [USER], "stream": True}).encode()))
        await reader.readuntil(b'"lo"')
        writer.close()
        await asyncio.wait_for(captured.recorded.wait(), 5)
        gate.set()
        await asyncio.wait_for(captured.server.left.wait(), 5)
        await captured.chat(USER)
        cut, retried = await captured.lines()
    assert cut["response"] == STREAM[0].decode()
    assert cut["session_id"] == retried["session_id"]
    assert "1  without a whole answer: the client left" in captured.summary()


@pytest.mark.anyio
async def test_a_client_that_leaves_at_the_end_mark_has_read_a_whole_answer(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with capturing(tmp_path, streamed([b"".join(STREAM), b": bye\n\n"], gate=gate)) as captured:
        reader, writer = await asyncio.open_connection("127.0.0.1", captured.port)
        writer.write(posted(json.dumps({"messages": [USER], "stream": True}).encode()))
        await reader.readuntil(b"[DONE]")
        writer.close()
        await asyncio.wait_for(captured.recorded.wait(), 5)
        gate.set()
        await captured.lines()
    assert not captured.recorder.unfinished


@pytest.mark.anyio
async def test_a_server_that_breaks_off_looks_so_to_the_client_and_in_the_recording(tmp_path: Path) -> None:
    async def silent(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.close()

    async with capturing(tmp_path, streamed(STREAM, cut_after=2), silent, completion()) as captured:
        with pytest.raises(httpx.RemoteProtocolError):
            await captured.chat(USER, stream=True)
        refused = await captured.chat(USER)
        assert refused.status_code == 502
        assert "the server broke off" in refused.json()["error"]["message"]
        assert (await captured.chat(USER)).status_code == 200
        cut, none, whole = await captured.lines()
    assert cut["response"] == b"".join(STREAM[:2]).decode()
    assert none["response"]["error"]["message"].startswith("the server broke off")
    assert len({line["session_id"] for line in (cut, none, whole)}) == 1
    assert "2  without a whole answer: the server broke off" in captured.summary()


@pytest.mark.anyio
async def test_a_server_that_is_gone_is_answered_for_and_recorded(tmp_path: Path) -> None:
    async with capturing(tmp_path) as captured:
        captured.proxy._upstream = Upstream.parse("http://127.0.0.1:9")
        answer = await captured.chat(USER)
        assert (answer.status_code, "nothing answers at http://127.0.0.1:9" in answer.text) == (502, True)
        (line,) = await captured.lines()
    assert line["response"]["error"]["message"].startswith("the server could not be reached: nothing answers")


@pytest.mark.anyio
async def test_refusals_pass_and_are_recorded_as_errors(tmp_path: Path) -> None:
    busy = completion({"error": {"message": "busy"}}, status=b"503 Busy")
    page = plain(b"<html>no</html>", status=b"502 Bad")
    detail = completion({"detail": "no such model"}, status=b"404 Not Found")
    async with capturing(tmp_path, busy, page, detail) as captured:
        answers = [await captured.chat(USER) for _ in range(3)]
        assert [one.status_code for one in answers] == [503, 502, 404]
        assert answers[1].text == "<html>no</html>"
        lines = await captured.lines()
    assert [line["response"] for line in lines] == [
        {"error": {"message": "busy"}},
        {"error": {"message": "<html>no</html>", "code": 502}},
        {"error": {"message": {"detail": "no such model"}, "code": 404}},
    ]
    assert "3  without a whole answer: the server refused" in captured.summary()


@pytest.mark.anyio
async def test_no_secret_is_written_wherever_it_stood(tmp_path: Path) -> None:
    keys = [f"sk-{place}-0123456789" for place in ("bearer", "header", "query", "field", "nested", "cookie")]
    echo = completion({"error": {"message": f"bad key {keys[0]} and {keys[2]}"}}, status=b"401 No")
    fields = {
        "api_key": keys[3],
        "extra": {"headers": [{"Authorization": keys[4]}]},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"password": {}}}}}],
    }
    async with capturing(tmp_path, echo) as captured:
        await captured.client.post(
            f"{CHAT}?key={keys[2]}&v=1",
            json={"messages": [USER, {"role": "user", "content": f"my key is {keys[1]}"}]} | fields,
            headers={"Authorization": f"Bearer {keys[0]}", "api-key": keys[1], "Cookie": keys[5]},
        )
        assert all(key.encode() in b"".join(captured.server.heads + captured.server.bodies) for key in keys)
        (line,) = await captured.lines()
    assert "0123456789" not in captured.recorder.path.read_text()
    assert line["request"]["messages"][1]["content"] == f"my key is {HIDDEN}"
    assert line["request"]["tools"] == fields["tools"], "a schema is no secret"
    assert line["response"]["error"]["message"] == f"bad key {HIDDEN} and {HIDDEN}"


@pytest.mark.anyio
async def test_placeholder_keys_do_not_take_words_out_of_a_conversation(tmp_path: Path) -> None:
    async with capturing(tmp_path, completion()) as captured:
        await captured.client.post(
            CHAT, json={"messages": [USER]}, headers={"Authorization": "Bearer assistant", "api-key": "hi"}
        )
        (line,) = await captured.lines()
    assert (line["request"]["messages"], line["response"]) == ([USER], PLAIN)


@pytest.mark.anyio
async def test_compressed_answers_pass_as_they_are_and_are_read(tmp_path: Path) -> None:
    body = gzip.compress(json.dumps(PLAIN).encode())
    async with capturing(tmp_path, plain(body, b"Content-Encoding: gzip")) as captured:
        answer = await captured.client.post(
            CHAT, json={"messages": [USER]}, headers={"Accept-Encoding": "br, gzip;q=0.5, zstd"}
        )
        assert answer.json() == PLAIN
        assert b"Accept-Encoding: gzip;q=0.5\r\n" in captured.server.heads[0]
        (line,) = await captured.lines()
    assert line["response"] == PLAIN


@pytest.mark.anyio
async def test_runs_side_by_side_are_sessions_of_their_own(tmp_path: Path) -> None:
    def say(text: str) -> dict[str, Any]:
        return {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}

    more = {"role": "user", "content": "more"}
    async with capturing(tmp_path, *(completion(say(text)) for text in ("a", "b", "c", "d", "e"))) as captured:
        await captured.chat(USER)
        await captured.chat(USER)  # answered before: a second run
        await captured.chat(USER, {"role": "assistant", "content": "a"}, more)
        await captured.chat(USER, {"role": "assistant", "content": "b "}, more)
        await captured.chat({"role": "user", "content": "other"})
        ids = [line["session_id"] for line in await captured.lines()]
    assert ids[0] == ids[2]
    assert ids[1] == ids[3]
    assert len(set(ids)) == 3
    assert len(list(chat_log.load(captured.recorder.path))) == 3


@pytest.mark.anyio
async def test_a_recording_is_continued_after_a_crash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with capturing(tmp_path, completion()) as captured:
        await captured.chat(USER)
        (first,) = await captured.lines()
    with captured.recorder.path.open("a") as file:
        file.write('{"session_id": "x", "requ')
    async with capturing(tmp_path, completion()) as captured:
        assert captured.recorder.continued == 1
        assert "removed line 2, which a crash had cut short" in capsys.readouterr().err
        await captured.chat(USER, PLAIN["choices"][0]["message"], {"role": "user", "content": "more"})
        _, second = await captured.lines()
    assert second["session_id"] == first["session_id"]
    assert captured.recorder.waits_s[0] > 0
    assert len(list(chat_log.load(captured.recorder.path))) == 1


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_text("precious")
    with pytest.raises(WorkloadError, match=r"line 1 is no call that capture recorded; choose another out="):
        Recorder(path, clock_start_s=0)
    assert path.read_text() == "precious"


@pytest.mark.anyio
async def test_a_full_disk_stops_the_recording_and_not_the_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "calls.jsonl").symlink_to("/dev/full")
    async with capturing(tmp_path, completion(), completion()) as captured:
        assert [(await captured.chat(USER)).status_code for _ in range(2)] == [200, 200]
    assert capsys.readouterr().err.count("No space left on device; calls are passed on unrecorded") == 1
    assert "2  calls that could not be written" in captured.summary()


@pytest.mark.anyio
async def test_odd_requests_pass(tmp_path: Path) -> None:
    bodies = [b"", b"[1]", b'{"input": 1}', b"\xff", b'{"messages": [], "x": ' + b"[" * 900 + b"]" * 900 + b"}"]
    async with capturing(tmp_path, *(completion() for _ in range(6))) as captured:
        for body in bodies:
            assert (await captured.client.post(CHAT, content=body)).status_code == 200
        assert captured.server.bodies == bodies
        odd = posted(b"{}", b"Accept-Encoding: \xe9", b"Connection: close", path=b"//[x/completions?key=1")
        assert (await raw(captured.port, odd)).startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 400" in await raw(captured.port, b"no http\r\n\r\n")
        assert await captured.lines() == []
    assert "6  requests without messages or prompt" in captured.summary()


@pytest.mark.anyio
async def test_a_client_that_asks_before_it_sends_is_told_to_go_on(tmp_path: Path) -> None:
    body = json.dumps({"messages": [USER]}).encode()
    async with capturing(tmp_path, completion()) as captured:
        answer = await raw(captured.port, posted(body, b"Expect: 100-continue", b"Connection: close"))
        assert answer.startswith(b"HTTP/1.1 100 \r\n\r\nHTTP/1.1 200 OK\r\n")
        assert b"xpect" not in captured.server.heads[0]
        assert len(await captured.lines()) == 1


@pytest.mark.anyio
async def test_an_answer_that_only_the_end_of_the_connection_ends_is_whole(tmp_path: Path) -> None:
    async def old(writer: asyncio.StreamWriter, _: bytes) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + json.dumps(PLAIN).encode())
        await writer.drain()
        writer.close()

    async with capturing(tmp_path, old, completion()) as captured:
        assert (await captured.chat(USER)).json() == PLAIN
        assert (await captured.chat(USER)).json() == PLAIN
        assert captured.server.connections == 2
        assert [line["response"] for line in await captured.lines()] == [PLAIN, PLAIN]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "asked", "target"),
    [
        ("", "/v1/models", b"/v1/models"),
        ("/v1/", "/v1/models", b"/v1/models"),
        ("/api/v1", "/v1/models", b"/api/v1/models"),
        ("/v1beta/openai", "/models", b"/v1beta/openai/models"),
    ],
)
async def test_an_upstream_may_be_given_as_clients_are_given_it(
    tmp_path: Path, path: str, asked: str, target: bytes
) -> None:
    async with capturing(tmp_path, completion(), url="http://127.0.0.1:{}" + path) as captured:
        await captured.client.get(asked)
        assert captured.server.heads[0].startswith(b"GET " + target + b" HTTP/1.1\r\nHost: 127.0.0.1:")


@pytest.mark.anyio
async def test_real_recorded_exchanges_come_out_as_they_went_in(tmp_path: Path, shared: Path) -> None:
    cassettes = sorted((shared / "data/openai_vcr").glob("*.yaml"))
    assert cassettes
    found = 0
    for cassette in cassettes:
        for interaction in vcr._interactions(cassette):
            body = vcr._text(interaction["request"]["body"], "request").encode()
            answer = vcr._text(interaction["response"]["body"], "response").encode()
            status = interaction["response"]["status"]["code"]
            kind = next(
                v[0] for k, v in interaction["response"]["headers"].items() if k.lower() == "content-type"
            ).encode()
            folder = tmp_path / f"{cassette.stem}-{found}"
            folder.mkdir()
            script = plain(answer, b"Content-Type: " + kind, status=b"%d X" % status)
            async with capturing(folder, script) as captured:
                passed = await captured.client.post(CHAT, content=body)
                assert passed.content == answer
                (line,) = await captured.lines()
            assert line["request"] == json.loads(body)
            if status == 200:
                text = line["response"] if isinstance(line["response"], str) else None
                assert text == answer.decode() if text else line["response"] == json.loads(answer)
            else:
                assert line["response"]["error"]
            found += 1
    assert found >= len(cassettes)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Key and certificate of localhost."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make a certificate with")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(["openssl", "req", *kind, *name, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return key, cert


@pytest.mark.anyio
async def test_tls_upstreams_work_and_untrusted_ones_are_named(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, cert = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server = Server([completion()])
    async with await asyncio.start_server(server, "127.0.0.1", 0, ssl=context) as listening:
        url = f"https://localhost:{listening.sockets[0].getsockname()[1]}"
        with pytest.raises(WorkloadError, match=r"certificate is not trusted .*SSL_CERT_FILE"):
            await Upstream.parse(url).connect()
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        recorder = Recorder(tmp_path / "calls.jsonl", clock_start_s=0)
        proxy = Proxy(Upstream.parse(url), recorder.add)
        async with await proxy.listen("127.0.0.1", 0) as front:
            base = f"http://127.0.0.1:{front.sockets[0].getsockname()[1]}"
            async with httpx.AsyncClient(base_url=base, trust_env=False) as client:
                assert (await client.post(CHAT, json={"messages": [USER]})).json() == PLAIN
            await proxy.stop()
    recorder.close()
    assert recorder.calls == 1


def started(*command: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )


def test_the_command_records_a_real_server_until_it_is_told_to_stop(tmp_path: Path) -> None:
    out = tmp_path / "calls.jsonl"
    with started("engines.fake", "--decode-ms", "0") as fake:
        assert fake.stdout is not None
        url = fake.stdout.readline().split()[-1]
        with started("workloads.cli", "capture", "--upstream", url, f"out={out}", "port=0") as proxy:
            assert proxy.stdout is not None
            line = proxy.stdout.readline()
            base = next(word for word in line.split() if word.startswith("http"))
            body = {"prompt": [1, 2, 3], "max_tokens": 4, "stream": True}
            answers = [
                httpx.post(f"{base}/completions", json=body | {"prompt": prompt}, trust_env=False).text
                for prompt in ([1, 2, 3], [1, 2, 3, 4, 5])
            ]
            assert httpx.get(f"{base}/models", trust_env=False).json()["data"][0]["id"] == "fake"
            proxy.send_signal(signal.SIGTERM)
            printed, errors = proxy.communicate(timeout=10)
        fake.terminate()
    assert (proxy.returncode, errors) == (0, "")
    assert "recorded 2 calls of 1 session" in printed
    assert "2  text completions, which `prepare source=chat_log` drops" in printed
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["response"] for row in rows] == answers
    assert answers[0].count("data: ") == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "upstream= is missing"),
        (["upstream=ftp://x"], "is no http:// or https:// URL"),
        (["upstream=http://x:y"], "give one like http://127.0.0.1:8080"),
        (["upstream=http://me:key@x"], "upstream= holds a key or a query"),
        (["upstream=http://127.0.0.1:9"], "nothing answers at http://127.0.0.1:9; start the server"),
        (["upstream=http://127.0.0.1:9", "out=nowhere/calls.jsonl"], "nowhere: no such folder"),
        (["upstream=http://127.0.0.1:9", "port=70000"], "port=70000 is no port"),
        (["--upsteam", "http://x"], "do you mean upstream=?"),
    ],
)
def test_what_a_user_can_mend_is_one_line_with_status_2(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(["capture", *words])
    printed = capsys.readouterr()
    assert (caught.value.code, printed.err.count("\n"), printed.out) == (2, 1, "")
    assert message in printed.err
    assert list(tmp_path.iterdir()) == []


def test_a_taken_port_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as caught:
            main(["capture", f"upstream=http://127.0.0.1:{port}", f"port={port}", f"out={tmp_path / 'c.jsonl'}"])
    assert caught.value.code == 2
    assert f"can't listen at 127.0.0.1:{port}" in capsys.readouterr().err


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    main(["capture", "--help"])
    assert "prepare capture upstream=http://127.0.0.1:8080 out=calls.jsonl port=8800" in capsys.readouterr().out


def as_openai(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        fields["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.role == "tool":
        fields["tool_call_id"] = message.tool_call_id
    return fields


def as_stream(message: dict[str, Any], letters: int = 7) -> list[bytes]:
    """A real answer as a server would stream it: texts in pieces, a call's name before its arguments."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    text = message["content"] or ""
    deltas += [{"content": text[k : k + letters]} for k in range(0, len(text), letters)]
    for index, call in enumerate(message.get("tool_calls", [])):
        arguments = call["function"]["arguments"]
        start = {"name": call["function"]["name"], "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, "id": call["id"], "type": "function", "function": start}]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": arguments[k : k + letters]}}]}
            for k in range(0, len(arguments), letters)
        ]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    events = [b"data: %b\n\n" % json.dumps({"id": "x", "choices": [choice]}).encode() for choice in choices]
    return [*events, b"data: [DONE]\n\n"]


@pytest.mark.anyio
async def test_a_recorded_conversation_lived_again_through_the_proxy_is_prepared_to_the_same_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = min(CONVERSATIONS.glob("*.json"), key=lambda file: file.stat().st_size)
    original = next(iter(conversation_json.load(path)))
    messages = [as_openai(message) for message in original.messages]
    turns = [number for number, message in enumerate(original.messages) if message.origin == "model"]
    async with capturing(tmp_path, *(streamed(as_stream(messages[turn])) for turn in turns)) as captured:
        for turn in turns:
            await captured.chat(*messages[:turn], tools=list(original.tools), stream=True)
        lines = await captured.lines()
    assert len(turns) == len(lines) > 1
    assert len({line["session_id"] for line in lines}) == 1
    out = tmp_path / "sessions.parquet"
    main(["source=chat_log", f"path={captured.recorder.path}", f"out={out}"])
    assert "sessions: 1 read, 1 kept, 0 dropped" in capsys.readouterr().out
    (session,) = store.read(out)
    expected = Renderer(TOKENIZER).render(original)
    assert [(turn.kind, turn.delta_ids, turn.output_ids) for turn in session.turns] == [
        (turn.kind, turn.delta_ids, turn.output_ids) for turn in expected.turns
    ]
    waits = [turn.tool_wait_s for turn in session.turns]
    assert waits[0] is None
    assert waits[1:] == pytest.approx(captured.recorder.waits_s, abs=1e-5)
