import json
from pathlib import Path
from typing import Any

import pytest

from workloads.conversation import Conversation
from workloads.formats import agentsuite as suite
from workloads.formats.chat import NULL_CONTENT
from workloads.formats.openai_message import REBUILT_ARGUMENTS
from workloads.formats.openhands import NO_TOOLS
from workloads.formats.pairing import BY_POSITION, UNPAIRED
from workloads.formats.tau2 import HIDDEN_RESULT, HIDDEN_USER
from workloads.session import WorkloadError


def said(role: str, content: Any = "", *names: str | None, **fields: Any) -> dict[str, Any]:
    calls = [{"name": name, "arguments": {"a": 1}} for name in names]
    return {"role": role, "content": content} | ({"tool_calls": calls} if calls else {}) | fields


def row(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "model_path": "gpt-5",
        "user_model_path": "gpt-4.1",
        "task_name": "retail",
        "messages": list(messages),
        "eval_result": {"score": 1.0},
        "meta": {"id": "retail_7"},
    } | fields


def loaded(folder: Path, *messages: dict[str, Any], **fields: Any) -> Conversation:
    path = folder / "gpt-5-nano.jsonl"
    path.write_text(json.dumps(row(*messages, **fields)))
    (conversation,) = suite.load(path)
    return conversation


def test_results_without_an_id_answer_calls_by_position(tmp_path: Path) -> None:
    one = loaded(
        tmp_path, said("user", "hi"), said("assistant", None, "find", "read"), said("tool", "1"), said("tool", "2")
    )
    assert [message.name for message in one.messages[2:]] == ["find", "read"]
    assert one.losses == {NULL_CONTENT: 1, REBUILT_ARGUMENTS: 2, BY_POSITION: 2, NO_TOOLS: 1}


def test_results_that_a_file_holds_as_user_messages_are_results(tmp_path: Path) -> None:
    one = loaded(
        tmp_path, said("user", "hi"), said("assistant", "", "find"), said("user", "found"), said("user", "thanks")
    )
    assert [message.role for message in one.messages] == ["user", "assistant", "tool", "user"]
    assert one.messages[2].name == "find"
    assert one.losses[suite.RESULT_AS_USER] == 1


def test_a_reminder_to_go_on_is_no_result(tmp_path: Path) -> None:
    reminder = said("user", "The tool has finished running. Please continue your reasoning.")
    one = loaded(tmp_path, said("user", "hi"), said("assistant", "", "find"), reminder, said("tool", "found"))
    assert [message.role for message in one.messages] == ["user", "assistant", "user", "tool"]
    assert suite.RESULT_AS_USER not in one.losses


def test_the_users_own_tools_are_hidden_from_the_agent(tmp_path: Path) -> None:
    one = loaded(
        tmp_path,
        said("system", "policy"),
        said("assistant", "Hi! How can I help you today?"),
        said("user", "let me look", "reboot", "ping"),
        said("tool", "rebooted"),
        said("tool", "pong"),
        said("user", "done"),
        said("assistant", "", "find"),
        said("tool", "found"),
        said("assistant", "bye"),
    )
    assert [message.content for message in one.messages] == [
        "policy",
        "Hi! How can I help you today?",
        "done",
        "",
        "found",
        "bye",
    ]
    assert one.messages[4].name == "find"
    assert (one.losses[HIDDEN_USER], one.losses[HIDDEN_RESULT]) == (1, 2)


def test_the_greeting_stands_in_the_prompt(tmp_path: Path) -> None:
    one = loaded(tmp_path, said("assistant", "Hi!"), said("user", "hello"), said("assistant", "yes?"))
    assert [message.origin for message in one.messages] == ["given", "given", "model"]
    assert one.losses == {suite.GREETING: 1}


def test_empty_function_names_and_calls_without_a_result_are_counted(tmp_path: Path) -> None:
    one = loaded(tmp_path, said("user", "hi"), said("assistant", "", "", None))
    assert [each.name for each in one.messages[1].tool_calls] == ["", ""]
    assert (one.losses[suite.NO_NAME], one.losses[suite.UNANSWERED]) == (2, 2)


def test_results_beyond_the_calls_are_counted(tmp_path: Path) -> None:
    assert loaded(tmp_path, said("assistant", ""), said("tool", "x")).losses[UNPAIRED] == 1


@pytest.mark.parametrize(("number", "task"), [("retail_7", "retail/7"), ("7", "retail/7"), (7, "retail/7")])
def test_runs_of_one_task_share_it_however_a_file_writes_its_id(tmp_path: Path, number: Any, task: str) -> None:
    assert loaded(tmp_path, said("user", "hi"), meta={"id": number}).task_id == task


def test_a_row_without_messages_gives_a_conversation_without_messages(tmp_path: Path) -> None:
    assert loaded(tmp_path).messages == ()


def test_calls_in_openais_form_keep_their_argument_text(tmp_path: Path) -> None:
    answer = said("assistant", "", tool_calls=[{"id": "c", "function": {"name": "find", "arguments": '{"a":1}'}}])
    (call,) = loaded(tmp_path, said("user", "hi"), answer).messages[1].tool_calls
    assert (call.name, call.arguments, call.call_id) == ("find", '{"a":1}', "c")


def test_rows_are_recognised_and_other_rows_refused(tmp_path: Path) -> None:
    assert suite.matches(row())
    assert suite.matches([row()])
    assert not any(suite.matches(one) for one in (None, [], "x", {"messages": []}, {"traj": []}))
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"messages": []}))
    with pytest.raises(WorkloadError, match="not an AgentSuite row but an object with the keys messages"):
        list(suite.load(path))
