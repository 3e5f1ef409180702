import json
from pathlib import Path
from typing import Any

import pytest

from workloads.conversation import Conversation
from workloads.formats import calls, chat_log, completion, exchange
from workloads.formats.chat import NULL_CONTENT
from workloads.formats.openai_message import REBUILT_ARGUMENTS, REFUSAL
from workloads.formats.openhands import NO_TOOLS
from workloads.session import WorkloadError

TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
USER = {"role": "user", "content": "hi"}


def tool_call(arguments: str = '{"a":1}', call_id: str = "c") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "look_up", "arguments": arguments}}


def answer(content: str | None = "yes", **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content} | fields


def completed(*messages: dict[str, Any], finish_reason: str = "stop") -> dict[str, Any]:
    return {
        "choices": [
            {"index": index, "finish_reason": finish_reason, "message": message}
            for index, message in enumerate(messages)
        ]
    }


def line(messages: list[dict[str, Any]], response: Any, tools: Any = TOOLS, **fields: Any) -> dict[str, Any]:
    return {"request": {"model": "m", "messages": messages, "tools": tools}, "response": response} | fields


def loaded(folder: Path, *lines: dict[str, Any]) -> list[Conversation]:
    path = folder / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return list(chat_log.load(path))


def said(conversation: Conversation) -> list[tuple[str, str]]:
    return [(message.origin, message.content) for message in conversation.messages]


def test_a_call_that_repeats_prompt_and_answer_continues_the_conversation(tmp_path: Path) -> None:
    second = [USER, answer(), {"role": "user", "content": "more"}]
    (one,) = loaded(tmp_path, line([USER], completed(answer())), line(second, completed(answer("no"))))
    assert said(one) == [("given", "hi"), ("model", "yes"), ("given", "more"), ("model", "no")]
    assert (one.conversation_id, one.losses, len(one.tools)) == ("log", {}, 1)


def test_waits_and_latencies_are_those_of_the_log(tmp_path: Path) -> None:
    second = [USER, answer(), {"role": "user", "content": "more"}]
    (one,) = loaded(
        tmp_path,
        line([USER], completed(answer()), time_s=10, duration_s=2.5),
        line(second, completed(answer("no")), time_s=14, duration_s=1),
    )
    assert [message.time_s for message in one.messages] == [10, 12.5, 14, 15]
    assert [message.latency_s for message in one.messages] == [None, 2.5, None, 1]


def test_an_answer_that_came_back_changed_is_kept_as_the_model_wrote_it(tmp_path: Path) -> None:
    wrote = answer("\nlooking \n", tool_calls=[tool_call('{"b":2,"a":1}')])
    sent = answer("looking", tool_calls=[tool_call('{"a": 1, "b": 2}')])
    result = {"role": "tool", "tool_call_id": "c", "content": "found"}
    (one,) = loaded(tmp_path, line([USER], completed(wrote)), line([USER, sent, result], completed(answer("done"))))
    assert one.messages[1].content == "\nlooking \n"
    assert one.messages[1].tool_calls[0].arguments == '{"b":2,"a":1}'
    assert one.messages[2].name == "look_up"
    assert one.losses == {calls.CHANGED: 1}


def test_of_several_choices_the_one_that_the_session_went_on_with_is_replayed(tmp_path: Path) -> None:
    first, second = answer("a"), answer("b")
    (one,) = loaded(
        tmp_path,
        line([USER], completed(first, second)),
        line([USER, second, {"role": "user", "content": "more"}], completed(answer("c"), answer("d"))),
    )
    assert [message.content for message in one.messages if message.origin == "model"] == ["b", "c"]
    assert one.losses == {calls.OTHER_CHOICES: 2}


def test_branches_and_retries_are_sessions_of_their_own(tmp_path: Path) -> None:
    def on(text: str) -> list[dict[str, Any]]:
        return [USER, answer(), {"role": "user", "content": text}]

    found = loaded(
        tmp_path,
        line([USER], completed(answer())),
        line(on("left"), completed(answer("l"))),
        line(on("right"), completed(answer("r"))),
        line(on("right"), completed(answer("r2"))),
    )
    assert [said(one)[-2:] for one in found] == [
        [("given", "left"), ("model", "l")],
        [("given", "right"), ("model", "r")],
        [("given", "right"), ("model", "r2")],
    ]
    assert [one.conversation_id for one in found] == ["log", "log/2", "log/3"]
    assert [one.losses for one in found] == [{}, {calls.BRANCH: 1}, {calls.RETRY: 1}]
    assert {one.task_id for one in found} == {"log"}


def test_calls_of_two_sessions_are_never_one_conversation(tmp_path: Path) -> None:
    second = [USER, answer(), {"role": "user", "content": "more"}]
    found = loaded(
        tmp_path,
        line([USER], completed(answer()), session_id="a"),
        line(second, completed(answer("no")), session_id="b"),
    )
    assert [one.conversation_id for one in found] == ["a", "b"]


def test_other_tools_are_another_prompt(tmp_path: Path) -> None:
    second = [USER, answer(), {"role": "user", "content": "more"}]
    found = loaded(tmp_path, line([USER], completed(answer())), line(second, completed(answer("no")), tools=None))
    assert len(found) == 2


STREAM = (
    ": ping\n\n"
    'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"lo"}}]}\r\n\r\n'
    'data: {"choices":[{"index":1,"delta":{"content":"other"}}]}\n\n'
    'data: {"choices":[{"index":0,"delta":{"content":"ok","reasoning_content":"hm"}}]}\n\n'
    'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"d","function":{"name":"look_up",'
    '"arguments":"{}"}}]}}]}\n\n'
    'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","function":{"name":"look_up",'
    '"arguments":""}}]}}]}\n\n'
    'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a\\""}}]}}]}\n\n'
    'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]},'
    '"finish_reason":"tool_calls"}]}\n\n'
    'data: {"choices":[],"usage":{"completion_tokens":7}}\n\n'
)


def test_a_stream_gives_the_message_that_its_fragments_make(tmp_path: Path) -> None:
    (one,) = loaded(tmp_path, line([USER], STREAM + "data: [DONE]\n\n"))
    last = one.messages[-1]
    assert (last.content, last.reasoning) == ("look", "hm")
    assert [(each.call_id, each.arguments) for each in last.tool_calls] == [("c", '{"a":1}'), ("d", "{}")]
    assert one.losses == {calls.OTHER_CHOICES: 1}


def test_of_a_stream_that_breaks_off_only_the_choices_that_ended_are_kept(tmp_path: Path) -> None:
    (one,) = loaded(tmp_path, line([USER], STREAM))
    assert one.messages[-1].content == "look"
    assert one.losses == {completion.CUT: 1}


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (None, completion.NO_ANSWER),
        ("", completion.NO_ANSWER),
        ({"error": {"message": "overloaded"}}, completion.FAILED),
        ('{"error": {"message": "overloaded"}}', completion.FAILED),
        ('data: {"error": {"message": "overloaded"}}\n\n', completion.FAILED),
        ("<html>502</html>", completion.NO_COMPLETION),
        ({"choices": []}, completion.NO_COMPLETION),
        ({"choices": [{"text": "once"}]}, completion.NO_COMPLETION),
        ("data: [DONE]\n\n", completion.NO_COMPLETION),
        ('data: {"choices":[{"index":0,"delta":{"content":"Th', completion.CUT),
        ('data: {"choices":[{"index":0,"delta":{"content":"Th"}}]}\n\n', completion.CUT),
    ],
)
def test_a_call_without_a_whole_answer_is_dropped_and_counted(tmp_path: Path, response: Any, reason: str) -> None:
    (one,) = loaded(tmp_path, line([USER], response), line([USER], completed(answer())))
    assert one.losses == {reason: 1}
    assert len(one.messages) == 2


def test_a_log_without_one_answer_is_refused_with_the_reasons(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"log\.jsonl: holds no answered call \(2 calls without an answer"):
        loaded(tmp_path, line([USER], None), line([USER], None))


def test_every_call_is_a_turn_or_counted(tmp_path: Path) -> None:
    lines = [
        line([USER], completed(answer())),
        line([USER, answer(), USER], completed(answer("b"))),
        line([USER], {"error": {}}),
        line([USER], None),
        line([], completed(answer())),
        {"request": {"model": "m", "prompt": "once"}, "response": {"choices": [{"text": "upon"}]}},
    ]
    found = loaded(tmp_path, *lines)
    turns = sum(message.origin == "model" for one in found for message in one.messages)
    dropped = {completion.NO_ANSWER, completion.NO_COMPLETION, exchange.NO_PROMPT, exchange.TEXT_COMPLETION}
    counted = sum(count for one in found for reason, count in one.losses.items() if reason in dropped)
    assert (turns, counted) == (2, 4)


def test_older_field_names_are_read(tmp_path: Path) -> None:
    messages = [
        {"role": "developer", "content": "be kind"},
        USER,
        answer(None, function_call={"name": "look_up", "arguments": "{}"}),
        {"role": "function", "name": "look_up", "content": "found"},
    ]
    body = {"messages": messages, "functions": [{"name": "look_up", "parameters": {}}]}
    (one,) = loaded(tmp_path, {"request": body, "response": answer()})
    assert [message.role for message in one.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert one.tools[0]["function"]["name"] == "look_up"
    assert [message.origin for message in one.messages].count("model") == 1


def test_refusals_token_limits_and_parsed_arguments_are_counted(tmp_path: Path) -> None:
    call = {"id": "c", "function": {"name": "look_up", "arguments": {"a": 1}}}
    found = loaded(
        tmp_path,
        line([USER], completed(answer(None, refusal="I can't."), finish_reason="length")),
        line([USER], completed(answer(None, tool_calls=[call]))),
    )
    assert found[0].messages[-1].content == "I can't."
    assert found[0].losses == {completion.TOKEN_LIMIT: 1, REFUSAL: 1}
    assert found[1].messages[-1].tool_calls[0].arguments == '{"a": 1}'
    assert found[1].losses == {REBUILT_ARGUMENTS: 1, NULL_CONTENT: 1, calls.RETRY: 1}


def test_repeated_messages_are_counted_once(tmp_path: Path) -> None:
    wrote = answer(None, tool_calls=[tool_call()])
    result = {"role": "tool", "tool_call_id": "c", "content": None}
    third = [USER, wrote, result, answer(), USER]
    (one,) = loaded(
        tmp_path,
        line([USER], completed(wrote)),
        line([USER, wrote, result], completed(answer())),
        line(third, completed(answer())),
    )
    assert one.losses == {NULL_CONTENT: 2}


def test_a_row_may_hold_a_whole_conversation(tmp_path: Path) -> None:
    messages = [USER, answer("", tool_calls=[tool_call()]), {"role": "tool", "content": "found"}, answer("done")]
    with_tools, without = loaded(tmp_path, {"messages": messages, "tools": TOOLS}, {"messages": messages, "id": "x"})
    assert [message.origin for message in with_tools.messages] == ["given", "model", "given", "model"]
    assert with_tools.messages[2].tool_call_id == "c"
    assert NO_TOOLS not in with_tools.losses
    assert without.losses[NO_TOOLS] == 1
    assert without.conversation_id == "x"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"a": 1}, "line 1: not a row of a chat log but an object with the keys a"),
        (line([{"role": "ai", "content": ""}], completed(answer())), "request, message 1: unknown role 'ai'"),
        (line([USER], completed(answer()), time_s="now"), "time_s: must be a number of seconds"),
        (line([USER], completed(answer()), session_id=7), "session_id: must be text"),
        (line([USER], completed(answer()), tools=[7]), "request: a tool schema is a JSON object"),
        (line([USER], completed(answer(tool_calls=[{}]))), "response, choice 1, tool call 1: has no function name"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(tmp_path: Path, row: dict[str, Any], expected: str) -> None:
    with pytest.raises(WorkloadError, match=expected):
        loaded(tmp_path, row)


def test_rows_are_recognised() -> None:
    assert chat_log.matches(line([USER], None))
    assert chat_log.matches([{"messages": [USER], "tools": TOOLS}])


@pytest.mark.parametrize(
    "head",
    [
        None,
        "x",
        [],
        [USER],
        {"messages": []},
        {"messages": [USER], "instance_id": "a", "tools": TOOLS},
        {"messages": [USER], "info": {}, "trajectory_format": "mini-swe-agent-1.1"},
        {"request": "x", "response": "y"},
    ],
)
def test_anything_else_is_not(head: Any) -> None:
    assert not chat_log.matches(head)
