"""What a capturing proxy writes down: sessions with their waits, no secret, a file that a crash does not end."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from capturing import CHAT, PLAIN, STREAM, STREAM_MESSAGE, USER, capturing, completion, streamed

from workloads import store
from workloads.capture.recorder import Recorder
from workloads.capture.redact import HIDDEN
from workloads.cli import main
from workloads.conversation import Message
from workloads.formats import chat_log, conversation_json
from workloads.render import Renderer
from workloads.sample_paths import CONVERSATIONS, TOKENIZER
from workloads.session import WorkloadError


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
