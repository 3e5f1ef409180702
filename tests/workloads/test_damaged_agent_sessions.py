"""Recordings of coding agents with something broken in them: read, or refused in one line that names the file."""

import copy
import importlib
import json
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workloads.conversation import Conversation
from workloads.session import WorkloadError

FUZZ = settings(
    max_examples=100,  # of values and of bytes, on made and on real recordings
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
OTHER_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, float("nan"), float("inf"), 10**400, "", "x", "\ud800", "[", "attachment://x"),
    *([], [1], ["x"], [{}], [[]], {}, {"a": 1}, {"role": "user"}, "user", "agent", "tool"),
)

CALL = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
TALK = [
    {"role": "system", "content": "be good"},
    {"role": "user", "content": [{"type": "text", "text": "fix it"}]},
    {"role": "assistant", "content": "", "tool_calls": [CALL], "extra": {"timestamp": 1.5}},
    {"role": "tool", "content": "found", "tool_call_ids": ["c"], "agent": "main", "is_demo": False},
    {"role": "assistant", "content": "<function=submit>\n```bash\nls\n```"},
    {"role": "user", "content": "OBSERVATION:\ndone"},
]
METADATA = {
    "function_name": "look_up",
    "tool_call_id": "c",
    "model_response": {
        "id": "r",
        "choices": [{"message": {"content": "", "role": "assistant", "tool_calls": [CALL]}}],
    },
}
EVENTS = [
    {
        "action": "system",
        "args": {"content": "be good", "tools": [{"type": "function", "function": {"name": "look_up"}}]},
    },
    {"action": "message", "source": "user", "args": {"content": "fix it", "image_urls": []}},
    {"action": "run", "source": "agent", "timestamp": "2025-01-01T00:00:00", "tool_call_metadata": METADATA},
    {
        "observation": "run",
        "content": "found",
        "extras": {"metadata": {"exit_code": 0, "working_dir": "/", "suffix": "."}},
        "timestamp": "2025-01-01T00:00:01",
        "tool_call_metadata": METADATA,
    },
    {"action": "run", "thought": "look", "command": "ls"},
    {"observation": "error", "content": "bad"},
]
RECORDS = [
    {
        "type": "user",
        "uuid": "1",
        "sessionId": "s",
        "timestamp": "2025-01-01T00:00:00Z",
        "message": {"content": "go"},
    },
    {
        "type": "assistant",
        "uuid": "2",
        "parentUuid": "1",
        "message": {"id": "m", "content": [{"type": "tool_use", "id": "c", "name": "Bash", "input": {"a": 1}}]},
    },
    {
        "type": "user",
        "uuid": "3",
        "parentUuid": "2",
        "isSidechain": False,
        "message": {
            "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "a"}]}]
        },
    },
    {"type": "user", "uuid": "4", "parentUuid": "1", "isCompactSummary": True, "message": {"content": "so far"}},
]
MODEL_EVENT = {
    "event": "model",
    "input": [],
    "input_refs": [[0, 1]],
    "tools": [{"name": "look_up", "parameters": {}}],
    "output": {"choices": [{"message": {"id": "3", "role": "assistant", "content": "a"}}], "time": 1.5},
    "completed": "2025-01-01T00:00:02+00:00",
    "call": {"response": {"choices": [{"message": {"tool_calls": [CALL]}}]}},
}
SAMPLE = {
    "id": 1,
    "epoch": 1,
    "messages": [
        {"role": "user", "content": "attachment://x"},
        {
            "id": "3",
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "function": "f", "arguments": {}}],
        },
        {"role": "tool", "content": "", "tool_call_id": "c", "function": "f", "error": {"message": "bad"}},
    ],
    "attachments": {"x": "long"},
    "message_pool": [{"role": "user", "content": "go"}],
    "events": [MODEL_EVENT, {"event": "tool", "id": "c", "completed": "2025-01-01T00:00:03+00:00"}],
}
STEPS = [
    {"source": "system", "message": "be good", "observation": {"results": []}},
    {
        "source": "agent",
        "message": [{"type": "text", "text": "a"}],
        "llm_call_count": 1,
        "timestamp": "2025-01-01T00:00:00Z",
        "reasoning_content": "hm",
        "tool_calls": [{"tool_call_id": "c", "function_name": "f", "arguments": {"a": 1}}],
        "observation": {"results": [{"source_call_id": "c", "content": "found"}, {"content": None}]},
    },
]
TRAJECTORY = {
    "schema_version": "ATIF-v1.7",
    "session_id": "s",
    "agent": {"name": "a", "tool_definitions": [{"type": "function", "function": {"name": "f"}}]},
    "steps": STEPS,
}
NEBIUS = {
    "instance_id": "a__b-7_1",
    "trajectory": [
        {"role": "system", "system_prompt": "be good", "text": None, "mask": False},
        {"role": "ai", "system_prompt": None, "text": "ls", "mask": True},
    ],
}
LATENCIES = {"response_latencies": [{"latency": 1.5, "response_id": "r"}]}

MADE: dict[str, tuple[str, str, Any]] = {
    "output_row": ("openhands_events", "a.json", {"instance_id": "a__b-7", "metrics": LATENCIES, "history": EVENTS}),
    "events": ("openhands_events", "a.json", EVENTS),
    "text_row": ("openhands_text", "a.json", {"instance_id": "a", "traj_id": "b", "messages": TALK}),
    "traj": ("swe_agent", "a.traj", {"history": TALK, "trajectory": [{"query": TALK[:2]}, {"query": TALK[:4]}]}),
    "nebius": ("swe_agent", "a.json", NEBIUS),
    "mini": (
        "mini_swe_agent",
        "a.traj.json",
        {"info": {}, "messages": TALK, "trajectory_format": "mini-swe-agent-1.1"},
    ),
    "mini_list": ("mini_swe_agent", "a.json", TALK),
    "claude": ("claude_code", "a.json", {"loglines": RECORDS}),
    "inspect": ("inspect_log", "a.json", {"eval": {"task": "t"}, "samples": [SAMPLE]}),
    "atif": ("atif", "trajectory.json", {**TRAJECTORY, "subagent_trajectories": [TRAJECTORY]}),
}
REAL: dict[str, tuple[str, str]] = {
    "evaluation": ("openhands_events", "openhands_events/multi_swe_bench_output_a.jsonl"),
    "resolver": ("openhands_events", "openhands_events/resolver_output.jsonl"),
    "trajectory": ("openhands_events", "openhands_events/traj_basic.json"),
    "smith": ("openhands_text", "swesmith_openhands_text/rows_3.jsonl"),
    "calling": ("swe_agent", "sweagent_traj/function_calling_simple.traj"),
    "rows": ("swe_agent", "sweagent_nebius/rows_3.jsonl"),
    "issue": ("mini_swe_agent", "mini_swe_agent/github_issue.traj.json"),
    "edges": ("claude_code", "claude_code/edge_cases.jsonl"),
    "export": ("claude_code", "claude_code/sample_session.json"),
    "images": ("inspect_log", "inspect_ai/log_images_tc.json"),
    "archive": ("inspect_log", "inspect_ai/log_message_deduplication.eval"),
}


def places(value: Any, *above: str | int) -> Iterator[tuple[str | int, ...]]:
    """Yield the keys that lead to each value inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield (*above, key)
        yield from places(one, *above, key)


def damaged(whole: Any, data: st.DataObject) -> Any:
    """Return a copy with up to three values replaced, removed or doubled."""
    value = json.loads(json.dumps(whole))
    for _ in range(data.draw(st.integers(1, 3))):
        found = list(places(value))
        if not found:
            break
        *above, key = data.draw(st.sampled_from(found))
        holder = value
        for one in above:
            holder = holder[one]
        how = data.draw(st.sampled_from(("replace", "replace", "remove", "double")))
        if how == "remove":
            del holder[key]
        elif how == "double" and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            holder[key] = copy.deepcopy(data.draw(st.sampled_from(OTHER_VALUES)))
    return value


def assert_read_or_refused(name: str, path: Path) -> None:
    refusal = None
    conversations = []
    try:
        conversations = list(importlib.import_module(f"workloads.formats.{name}").load(path))
    except WorkloadError as error:
        refusal = str(error)
    if refusal is not None:
        assert str(path) in refusal
        assert "\n" not in refusal
        return
    assert conversations
    for one in conversations:
        assert_well_typed(one)


def assert_well_typed(one: Conversation) -> None:
    assert isinstance(one.conversation_id, str)
    assert isinstance(one.task_id, str | None)
    assert all(isinstance(tool, dict) for tool in one.tools)
    assert all(isinstance(count, int) and count > 0 for count in one.losses.values())
    for message in one.messages:
        calls = [text for call in message.tool_calls for text in (call.name, call.arguments, call.call_id or "")]
        texts = [message.content, message.reasoning or "", message.tool_call_id or "", message.name or "", *calls]
        assert all(isinstance(text, str) for text in texts)
        assert (message.origin == "model") <= (message.role == "assistant")
        assert isinstance(message.time_s, float | None)
        assert isinstance(message.latency_s, float | None)


@pytest.mark.parametrize("which", MADE)
def test_made_recordings_are_read_whole(which: str, tmp_path: Path) -> None:
    name, file, whole = MADE[which]
    path = tmp_path / file
    path.write_text(json.dumps(whole))
    conversations = list(importlib.import_module(f"workloads.formats.{name}").load(path))
    assert any(message.origin == "model" for one in conversations for message in one.messages)


@pytest.mark.parametrize("which", MADE)
@FUZZ
@given(data=st.data())
def test_made_recordings_with_other_values_are_read_or_refused(
    which: str, data: st.DataObject, tmp_path: Path
) -> None:
    name, file, whole = MADE[which]
    path = tmp_path / file
    path.write_text(json.dumps(damaged(whole, data)))
    assert_read_or_refused(name, path)


@pytest.mark.parametrize("which", REAL)
@FUZZ
@given(data=st.data())
def test_real_recordings_with_other_bytes_are_read_or_refused(
    which: str, data: st.DataObject, tmp_path: Path, shared: Path
) -> None:
    name, file = REAL[which]
    path = tmp_path / Path(file).name
    whole = (shared / "data" / file).read_bytes()
    start = data.draw(st.integers(0, len(whole)))
    length = data.draw(st.integers(0, 40))
    other = data.draw(
        st.one_of(st.binary(max_size=8), st.sampled_from((b"null", b'"', b"[[", b"}", b"\\ud800", b"9" * 30)))
    )
    end = len(whole) if data.draw(st.booleans()) else start + length
    path.write_bytes(whole[:start] + other + whole[end:])
    assert_read_or_refused(name, path)


@pytest.mark.parametrize("which", REAL)
@FUZZ
@given(data=st.data())
def test_real_recordings_with_other_values_are_read_or_refused(
    which: str, data: st.DataObject, tmp_path: Path, shared: Path
) -> None:
    name, file = REAL[which]
    path = tmp_path / f"one{Path(file).suffix}"
    whole = beginning(shared / "data" / file)
    value = damaged(whole, data)
    if path.suffix == ".eval":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("header.json", json.dumps(value.get("header", {})))
            archive.writestr("samples/1_epoch_1.json", json.dumps(value.get("sample")))
    elif path.suffix == ".jsonl" and isinstance(value, list):
        path.write_text("\n".join(map(json.dumps, value)) or "\n")
    else:
        path.write_text(json.dumps(value))
    assert_read_or_refused(name, path)


@cache
def beginning(path: Path) -> Any:
    """Return a real recording with lists and texts cut short, so that each damage is likely to matter."""
    if path.suffix == ".eval":
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if name.startswith("samples/")]
            whole = {
                "header": json.loads(archive.read("header.json")),
                "sample": json.loads(archive.read(members[0])),
            }
            return cut(whole, items=12)
    text = path.read_text()
    return cut([json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text))


def cut(value: Any, *, items: int = 8) -> Any:
    if isinstance(value, dict):
        return {key: cut(one, items=items) for key, one in value.items()}
    if isinstance(value, list):
        return [cut(one, items=items) for one in value[:items]]
    return value[:100] if isinstance(value, str) else value
