import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from workloads.conversation import Conversation
from workloads.formats import calls, completion, otel
from workloads.formats.chat import NOT_TEXT
from workloads.formats.openai_message import REBUILT_ARGUMENTS
from workloads.session import WorkloadError


def span(messages: Any, text: str | None = "yes", start: str = "2026-02-25T10:00:00", **attributes: Any) -> Any:
    return {
        "trace_id": "t",
        "span_id": start,
        "start_time": start,
        "end_time": "2026-02-25T10:00:09Z",
        "attributes": {
            "gen_ai.operation.name": "chat",
            "gen_ai.input.messages": json.dumps(messages),
            **({"gen_ai.output.text": text} if text is not None else {}),
            **attributes,
        },
        "status": {"code": 1},
    }


def loaded(folder: Path, *spans: Any) -> list[Conversation]:
    path = folder / "trace.json"
    path.write_text(json.dumps({"trace_id": "t", "spans": list(spans)}, indent=1))
    return list(otel.load(path))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


# Counted in the files: spans, conversations that their contents make.
REAL = {
    "code_review_workflow": (15, 15),
    "customer_support_escalation": (9, 7),
    "fan_in_dependencies": (4, 3),
    "parallel_requests": (5, 2),
    "simple_chain": (3, 1),
}


@pytest.mark.parametrize("name", REAL)
def test_real_spans_are_all_turns_and_continue_each_other_by_content(shared: Path, name: str) -> None:
    found = list(otel.load(shared / f"data/otel_genai/{name}.json"))
    turns = sum(message.origin == "model" for one in found for message in one.messages)
    assert (turns, len(found)) == REAL[name]


def test_real_concurrent_spans_branch_and_the_other_branchs_answer_is_given(shared: Path) -> None:
    first, second = otel.load(shared / "data/otel_genai/parallel_requests.json")
    assert [message.origin for message in first.messages] == [
        "given",
        "model",
        "given",
        "model",
        "given",
        "given",
        "given",
        "model",
        "given",
        "model",
    ]
    assert first.messages[5].content == second.messages[-1].content
    assert second.losses == {calls.BRANCH: 1}


def test_real_times_give_waits_and_latencies(shared: Path) -> None:
    (one,) = otel.load(shared / "data/otel_genai/simple_chain.json")
    times = [message.time_s for message in one.messages]
    assert [time and time - (times[0] or 0) for time in times] == [0, 2.5, 3, 5, 6, 8]
    assert [message.latency_s for message in one.messages if message.origin == "model"] == [2.5, 2, 2]


def test_spans_stand_in_any_order(tmp_path: Path) -> None:
    later = span([user("hi"), {"role": "assistant", "content": "yes"}, user("more")], "no", "2026-02-25T10:00:05Z")
    (one,) = loaded(tmp_path, later, span([user("hi")]))
    assert [message.content for message in one.messages] == ["hi", "yes", "more", "no"]


def test_messages_made_of_parts_are_read(tmp_path: Path) -> None:
    call = {"type": "tool_call", "id": "c", "name": "look_up", "arguments": {"a": 1}}
    answer = {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, call], "finish_reason": "x"}
    result = {"type": "tool_call_response", "id": "c", "response": {"found": True}}
    picture = {"type": "blob", "content": "AAAA"}
    first = [{"role": "user", "parts": [{"type": "text", "content": "hi"}, picture]}]
    second = [*first, answer, {"role": "tool", "parts": [result]}]
    shared_attributes = {
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "be kind"}]),
        "gen_ai.tool.definitions": json.dumps([{"type": "function", "name": "look_up", "parameters": {}}]),
    }
    (one,) = loaded(
        tmp_path,
        span(first, None, **{"gen_ai.output.messages": json.dumps([answer])}, **shared_attributes),
        span(second, "done", "2026-02-25T10:00:05Z", **shared_attributes),
    )
    assert [message.role for message in one.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert (one.messages[2].reasoning, one.messages[2].tool_calls[0].arguments) == ("hm", '{"a": 1}')
    assert (one.messages[3].name, one.messages[3].content) == ("look_up", '{"found": true}')
    assert one.tools[0]["function"] == {"name": "look_up", "parameters": {}}
    assert one.losses == {NOT_TEXT: 1, REBUILT_ARGUMENTS: 1}


def test_every_span_is_a_turn_or_counted(tmp_path: Path) -> None:
    tool = span([user("hi")])
    tool["attributes"] = {"gen_ai.operation.name": "execute_tool"}
    bare = span([user("hi")])
    bare["attributes"] = {"gen_ai.operation.name": "chat"}
    failed = span([user("hi")], None)
    failed["status"] = {"code": 2, "message": "timeout"}
    found = loaded(tmp_path, span([user("hi")]), tool, bare, failed, span([user("hi")], None), span([user("a")]))
    assert sum(message.origin == "model" for one in found for message in one.messages) == 2
    losses = sum((Counter(one.losses) for one in found), Counter())
    assert losses == {otel.OTHER_SPAN: 1, otel.NO_MESSAGES: 1, completion.FAILED: 1, completion.NO_ANSWER: 1}


def test_sessions_are_named_by_their_attribute_and_kept_apart(tmp_path: Path) -> None:
    second = [user("hi"), {"role": "assistant", "content": "yes"}, user("more")]
    found = loaded(
        tmp_path,
        span([user("hi")], **{"gen_ai.conversation.id": "a"}),
        span(second, "no", "2026-02-25T10:00:05Z", **{"gen_ai.conversation.id": "b"}),
    )
    assert [one.conversation_id for one in found] == ["a", "b"]


def test_the_json_form_of_otlp_is_read(tmp_path: Path) -> None:
    attributes = [
        {"key": "gen_ai.input.messages", "value": {"stringValue": json.dumps([user("hi")])}},
        {"key": "gen_ai.output.text", "value": {"stringValue": "yes"}},
    ]
    one_span = {
        "traceId": "abc",
        "startTimeUnixNano": "1772013600000000000",
        "endTimeUnixNano": "1772013602500000000",
        "attributes": attributes,
    }
    path = tmp_path / "spans.jsonl"
    path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [one_span]}]}]}))
    (one,) = otel.load(path)
    assert (one.conversation_id, one.messages[-1].content) == ("abc", "yes")
    assert one.messages[-1].latency_s == 2.5


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"gen_ai.input.messages": '[{"role": "us'}, "gen_ai.input.messages: broken JSON .* cut by a limit"),
        ({"gen_ai.input.messages": "7"}, "the messages must be a list"),
        ({"gen_ai.input.messages": '[{"role": "ai", "parts": []}]'}, "message 1: unknown role 'ai'"),
        ({"gen_ai.tool.definitions": "{"}, "gen_ai.tool.definitions: broken JSON"),
    ],
)
def test_broken_attributes_are_refused_with_their_place(tmp_path: Path, change: Any, expected: str) -> None:
    with pytest.raises(WorkloadError, match=f"span 1, {expected}|span 1.*{expected}"):
        loaded(tmp_path, span([user("hi")], **change))


def test_spans_without_times_or_answers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="span 1, start_time: is missing"):
        loaded(tmp_path, span([user("hi")]) | {"start_time": None})
    with pytest.raises(WorkloadError, match=r"holds no answered model call \(1 calls without an answer\)"):
        loaded(tmp_path, span([user("hi")], None))
    with pytest.raises(WorkloadError, match="span 1: expected a span with attributes, found a number"):
        loaded(tmp_path, 7)


def test_traces_are_recognised(shared: Path) -> None:
    for file in (shared / "data/otel_genai").iterdir():
        assert otel.matches(json.loads(file.read_text()))
    assert otel.matches([{"resourceSpans": []}])


@pytest.mark.parametrize("head", [None, 7, "x", [], {}, {"spans": "x"}, {"spans": [{}]}, {"messages": []}])
def test_anything_else_is_not(head: Any) -> None:
    assert not otel.matches(head)
