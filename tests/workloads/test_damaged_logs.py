"""Real recordings (made ones where there are none), each with a value exchanged or bytes gone, many times over."""

import copy
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from workloads.formats import agentinstruct, agentsuite, chat_log, lmcache, mooncake, otel, tau1, vcr, weka
from workloads.session import WorkloadError

VOCAB = range(100, 4000)
SOME = settings(
    max_examples=50,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MANY = settings(SOME, max_examples=150)
OTHER_VALUES: tuple[Any, ...] = (None, True, 0, -1, 1.5, 1 << 70, "", "x", "[{", [], [1], ["x"], [{}], {}, {"a": 1})

CALL = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
SUITE = [
    {
        "model_path": "m",
        "task_name": "retail",
        "meta": {"id": "retail_1"},
        "eval_result": {"score": 0.0},
        "messages": [
            {"role": "system", "content": "policy"},
            {"role": "assistant", "content": "Hi!"},
            {"role": "user", "content": "hello", "tool_calls": [{"name": "ping", "arguments": {}}]},
            {"role": "tool", "content": "pong"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "user", "content": "found"},
        ],
    }
]
LOG = [
    {
        "session_id": "s",
        "time_s": 1.0,
        "duration_s": 2.0,
        "request": {
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"type": "function", "function": {"name": "look_up", "parameters": {}}}],
        },
        "response": {
            "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "tool_calls": [CALL]}}]
        },
    },
    {"request": {"messages": []}, "response": 'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}], "tools": []},
]


PARTS = {
    "spans": [
        {
            "start_time": "2026-02-25T10:00:00Z",
            "end_time": 1772013605.5,
            "status": {"code": 1},
            "attributes": {
                "gen_ai.system_instructions": [{"type": "text", "content": "be kind"}],
                "gen_ai.tool.definitions": [{"type": "function", "name": "look_up", "parameters": {}}],
                "gen_ai.input.messages": [
                    {"role": "user", "parts": [{"type": "text", "content": "hi"}]},
                    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": {"a": 1}}]},
                ],
                "gen_ai.output.messages": [
                    {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "x", "arguments": {}}]}
                ],
            },
        }
    ]
}
OTLP_SPAN = {
    "traceId": "a",
    "startTimeUnixNano": "1772013600000000000",
    "endTimeUnixNano": "1772013601000000000",
    "attributes": [
        {"key": "gen_ai.input.messages", "value": {"stringValue": '[{"role": "user", "content": "hi"}]'}},
        {
            "key": "gen_ai.output.messages",
            "value": {
                "arrayValue": {
                    "values": [{"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": "yes"}}]}}]
                }
            },
        },
    ],
}
OTLP = {"resourceSpans": [{"scopeSpans": [{"spans": [OTLP_SPAN]}]}]}


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def real(shared: Path, name: str) -> Any:
    """A short real recording of the format."""
    data = shared / "data"
    if name == "tau1":
        run = json.loads((data / "tau1/gpt-4o-airline_12.json").read_text())[0]
        return [run | {"traj": run["traj"][:9], "info": {}}]
    if name == "agentinstruct":
        return json.loads((data / "agentinstruct/os_role_content_3.json").read_text())[:1]
    if name == "vcr":
        path = data / "openai_vcr/test_chat_completion_tool_calls_with_content.yaml"
        whole = yaml.safe_load(path.read_text())
        for half in (half for interaction in whole["interactions"] for half in interaction.values()):
            half["headers"] = {"content-type": ["application/json"]}
        return whole
    if name == "otel":
        trace = json.loads((data / "otel_genai/simple_chain.json").read_text())
        for span in trace["spans"]:
            # Parsed already, so that what is inside can be damaged as well.
            attributes = span["attributes"]
            attributes["gen_ai.input.messages"] = json.loads(attributes["gen_ai.input.messages"])
        return [trace, PARTS, OTLP]
    if name == "lmcache":
        return lines(data / "lmcache_agent_trace/miniswe__189f0222310bd8eee310f204e91b9c84.jsonl")[:3]
    if name == "mooncake":
        return [row for row in lines(data / "mooncake/conversation_first300.jsonl") if row["input_length"] < 2000][:3]
    assert name == "weka"
    whole = json.loads((data / "weka_kvcache/trace_0504.json").read_text())
    for request in whole["requests"]:
        request["hash_ids"] = request["hash_ids"][:3]
    return [whole]


LOADERS: dict[str, Callable[[Path], Iterable[Any]]] = {
    "tau1": tau1.load,
    "agentsuite": agentsuite.load,
    "agentinstruct": agentinstruct.load,
    "chat_log": chat_log.load,
    "vcr": vcr.load,
    "otel": otel.load,
    "lmcache": lmcache.load,
    "mooncake": lambda path: mooncake.load(path, vocab=VOCAB),
    "weka": lambda path: weka.load(path, vocab=VOCAB),
}
MADE = {"agentsuite": SUITE, "chat_log": LOG}
MATCHES = {
    module.SOURCE: module.matches
    for module in (tau1, agentsuite, agentinstruct, chat_log, vcr, otel, lmcache, mooncake, weka)
}


def places(value: Any, *above: str | int) -> Iterator[tuple[str | int, ...]]:
    """Yield the keys that lead to each value inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield (*above, key)
        yield from places(one, *above, key)


def damaged(value: Any, place: tuple[str | int, ...], other: Any) -> Any:
    copied = copy.deepcopy(value)
    holder = copied
    for key in place[:-1]:
        holder = holder[key]
    if other is ...:
        del holder[place[-1]]
    else:
        holder[place[-1]] = other
    return copied


def require_read_or_refused(name: str, path: Path) -> None:
    found: list[Any] = []
    refusal = str(path)
    try:
        found = list(LOADERS[name](path))
    except WorkloadError as error:
        refusal = str(error)
    assert str(path) in refusal
    assert "\n" not in refusal
    assert all(one.source == name for one in found)


def recording(name: str, request: pytest.FixtureRequest) -> Any:
    return MADE[name] if name in MADE else real(request.getfixturevalue("shared"), name)


@pytest.mark.parametrize("name", LOADERS)
@MANY
@given(data=st.data())
def test_a_value_of_another_type_anywhere_is_read_or_refused_in_one_line(
    name: str, data: st.DataObject, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole = recording(name, request)
    place = data.draw(st.sampled_from(list(places(whole))))
    changed = damaged(whole, place, data.draw(st.sampled_from((*OTHER_VALUES, ...))))
    path = tmp_path / ("recording.yaml" if name == "vcr" else "recording.json")
    path.write_text(json.dumps(changed))
    MATCHES[name](changed)
    require_read_or_refused(name, path)


@pytest.mark.parametrize("name", LOADERS)
@SOME
@given(data=st.data())
def test_bytes_that_are_gone_or_changed_are_read_or_refused_in_one_line(
    name: str, data: st.DataObject, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole = json.dumps(recording(name, request), indent=1).encode()
    start = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(start, min(start + 40, len(whole))))
    path = tmp_path / ("recording.yaml" if name == "vcr" else "recording.json")
    path.write_bytes(whole[:start] + data.draw(st.binary(max_size=4)) + whole[end:])
    require_read_or_refused(name, path)
