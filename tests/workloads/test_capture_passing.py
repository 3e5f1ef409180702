"""What a capturing proxy passes on: every byte, as it comes, whatever the client and the server are like."""

import asyncio
import gzip
import json
import shutil
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest
from capturing import CHAT, PLAIN, STREAM, USER, Server, capturing, completion, plain, posted, raw, streamed

from workloads.capture.proxy import Proxy
from workloads.capture.recorder import Recorder
from workloads.capture.upstream import Upstream
from workloads.formats import vcr
from workloads.session import WorkloadError


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
