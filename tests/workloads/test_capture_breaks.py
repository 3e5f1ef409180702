"""Clients that leave and servers that break off, are gone or refuse: what is passed on and what is recorded."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from capturing import STREAM, USER, capturing, completion, plain, posted, streamed

from workloads.capture.upstream import Upstream


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
