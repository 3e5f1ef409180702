import json
from pathlib import Path
from typing import Any

import pytest

from workloads.conversation import Conversation
from workloads.formats import openhands_events as events
from workloads.formats import openhands_wording as wording
from workloads.formats.chat import NOT_TEXT, NULL_CONTENT
from workloads.formats.openhands import NO_TOOLS
from workloads.formats.pairing import UNPAIRED
from workloads.render import Renderer
from workloads.sample_paths import TOKENIZER
from workloads.session import WorkloadError

# Counted in the files: sessions, model turns, given messages, and what they lack.
REAL: dict[str, tuple[int, int, int, dict[str, int]]] = {
    "multi_swe_bench_output_a.jsonl": (2, 56, 59, {events.RECALLED: 2, events.NO_EVENT: 1}),
    "resolver_output.jsonl": (
        2,
        26,
        26,
        {events.TOLD_BY_WAITING: 2, wording.REBUILT_ACTION: 26, events.NO_SYSTEM: 2},
    ),
    "traj_basic.json": (1, 2, 2, {events.NO_SYSTEM: 1, NO_TOOLS: 1}),
    "traj_basic_interactions.json": (1, 3, 3, {NULL_CONTENT: 1, events.NO_SYSTEM: 1, NO_TOOLS: 1}),
}
SYSTEM = {
    "id": 0,
    "source": "agent",
    "action": "system",
    "args": {"content": "be good", "tools": [{"type": "function", "function": {"name": "bash", "strict": None}}]},
}
TASK = {"id": 1, "source": "user", "action": "message", "args": {"content": "fix it", "image_urls": None}}


def call(call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}


def response(response_id: str, *calls: dict[str, Any], content: str | None = "") -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "tool_calls": list(calls) or None, "function_call": None}
    return {"id": response_id, "choices": [{"finish_reason": "stop", "index": 0, "message": message}]}


def metadata(call_id: str, answer: dict[str, Any]) -> dict[str, Any]:
    return {"function_name": "bash", "tool_call_id": call_id, "total_calls_in_response": 1, "model_response": answer}


def ran(call_id: str, answer: dict[str, Any], at: str | None = None) -> dict[str, Any]:
    return {
        "source": "agent",
        "action": "run",
        "args": {"command": "ls"},
        "timestamp": at,
        "tool_call_metadata": metadata(call_id, answer),
    }


def output(
    call_id: str, answer: dict[str, Any], content: str, at: str | None = None, **extras: Any
) -> dict[str, Any]:
    return {
        "source": "agent",
        "observation": "run",
        "content": content,
        "extras": {"metadata": extras} if extras else {},
        "timestamp": at,
        "tool_call_metadata": metadata(call_id, answer),
    }


def loaded(folder: Path, *history: Any, **row: Any) -> Conversation:
    path = folder / "output.jsonl"
    path.write_text(json.dumps({"instance_id": "a__b-7", "history": list(history), **row}))
    (conversation,) = events.load(path)
    return conversation


@pytest.mark.parametrize("name", REAL)
def test_real_streams_give_a_turn_a_model_response_and_say_what_they_lack(shared: Path, name: str) -> None:
    found = list(events.load(shared / "data/openhands_events" / name))
    messages = [message for one in found for message in one.messages]
    losses: dict[str, int] = {}
    for one in found:
        assert UNPAIRED not in one.losses
        for reason, count in one.losses.items():
            losses[reason] = losses.get(reason, 0) + count
    turns = sum(message.origin == "model" for message in messages)
    assert (len(found), turns, len(messages) - turns, losses) == REAL[name]


def test_real_evaluations_keep_system_prompt_tools_and_each_measured_latency(shared: Path) -> None:
    path = shared / "data/openhands_events/multi_swe_bench_output_a.jsonl"
    rows = [json.loads(line) for line in path.open()]
    for row, conversation in zip(rows, events.load(path), strict=True):
        assert conversation.messages[0].content == row["history"][0]["args"]["content"]
        assert len(conversation.tools) == len(row["history"][0]["args"]["tools"])
        measured = {one["latency"] for one in row["metrics"]["response_latencies"]}
        turns = [message for message in conversation.messages if message.origin == "model"]
        assert {message.latency_s for message in turns} <= measured
        assert all(message.time_s is not None for message in turns)


def test_a_real_run_renders_with_the_time_of_each_tool(shared: Path) -> None:
    found = next(events.load(shared / "data/openhands_events/multi_swe_bench_output_a.jsonl"))
    session = Renderer(TOKENIZER).render(found)
    assert [turn.kind for turn in session.turns] == ["first"] + ["tool"] * 22
    assert session.turns[1].tool_wait_s == pytest.approx(0.619638, abs=1e-5)


def test_a_response_that_stands_on_several_events_is_one_turn(tmp_path: Path) -> None:
    answer = response("r", call("x"), call("y"), content="look")
    one, two = ran("x", answer), ran("y", answer)
    found = loaded(tmp_path, SYSTEM, TASK, one, output("x", answer, "1"), two, output("y", answer, "2"))
    assert [(message.role, message.origin) for message in found.messages] == [
        ("system", "given"),
        ("user", "given"),
        ("assistant", "model"),
        ("tool", "given"),
        ("tool", "given"),
    ]
    assert [one.call_id for one in found.messages[2].tool_calls] == ["x", "y"]
    assert [message.tool_call_id for message in found.messages[3:]] == ["x", "y"]
    assert found.tools == ({"type": "function", "function": {"name": "bash"}},)
    assert found.losses == {}


def test_latencies_join_by_response_and_those_of_lost_responses_are_counted(tmp_path: Path) -> None:
    measured = [
        {"model": "m", "latency": 2.5, "response_id": "r"},
        {"model": "m", "latency": 1.0, "response_id": "gone"},
    ]
    found = loaded(
        tmp_path, SYSTEM, TASK, ran("x", response("r", call("x"))), metrics={"response_latencies": measured}
    )
    assert found.messages[2].latency_s == 2.5
    assert found.losses == {events.NO_EVENT: 1}


def test_recalls_and_states_are_no_messages_and_what_the_model_saw_of_them_is_counted(tmp_path: Path) -> None:
    recall = {"source": "user", "action": "recall", "args": {"query": "fix it"}}
    recalled = {"source": "environment", "observation": "recall", "content": "Added context", "extras": {}}
    state = {"source": "environment", "observation": "agent_state_changed", "content": "", "extras": {}}
    found = loaded(tmp_path, SYSTEM, TASK, recall, recalled, ran("x", response("r", call("x"))), state)
    assert len(found.messages) == 3
    assert found.losses == {events.RECALLED: 1, events.NOT_SEEN: 1}


def test_an_error_without_a_call_is_what_the_model_saw_as_a_user_message(tmp_path: Path) -> None:
    error = {"source": "agent", "observation": "error", "content": "bad call", "extras": {}}
    last = loaded(tmp_path, SYSTEM, TASK, ran("x", response("r", call("x"))), error).messages[-1]
    assert (last.role, last.content) == ("user", "bad call\n[Error occurred in processing last action]")
    assert last.carries_result


def test_a_command_output_ends_as_the_agent_showed_it(tmp_path: Path) -> None:
    answer = response("r", call("x"))
    extras = {"prefix": "<", "suffix": ">", "working_dir": "/w", "py_interpreter_path": "/p", "exit_code": 0}
    found = loaded(tmp_path, SYSTEM, TASK, ran("x", answer), output("x", answer, "out", **extras))
    assert found.messages[-1].content == (
        "<out>\n[Current working directory: /w]\n[Python interpreter: /p]\n[Command finished with exit code 0]"
    )


def test_actions_of_versions_without_calls_are_rebuilt_as_their_text(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        {"action": "message", "content": "fix it", "wait_for_response": False, "images_urls": ["a.png"]},
        {"action": "run", "thought": "look", "command": "ls"},
        {"observation": "run", "content": "a.py", "command_id": 3, "exit_code": 0},
        {"action": "run_ipython", "thought": "", "code": "1"},
        {"observation": "run_ipython", "content": "1"},
        {"action": "message", "content": "done?", "wait_for_response": True},
        instance_id=None,
        issue={"owner": "o", "repo": "r", "number": 5},
    )
    assert [(message.origin, message.content) for message in found.messages] == [
        ("given", "fix it"),
        ("model", "look\n<execute_bash>\nls\n</execute_bash>"),
        ("given", "OBSERVATION:\na.py\n[Command 3 finished with exit code 0]"),
        ("model", "\n<execute_ipython>\n1\n</execute_ipython>"),
        ("given", "OBSERVATION:\n1"),
        ("model", "done?"),
    ]
    assert found.task_id == "o/r#5"
    assert found.losses == {
        events.NO_SYSTEM: 1,
        events.TOLD_BY_WAITING: 2,
        wording.REBUILT_ACTION: 2,
        NOT_TEXT: 1,
    }


def test_what_the_user_ran_is_told_to_the_model(tmp_path: Path) -> None:
    run = {"source": "user", "action": "run", "args": {"command": "ls"}}
    seen = {"source": "user", "observation": "run", "content": "a.py", "extras": {}}
    found = loaded(tmp_path, SYSTEM, TASK, run, seen)
    assert [message.content for message in found.messages[2:]] == [
        "User executed the command:\nls",
        "\nObserved result of command executed by user:\na.py",
    ]
    assert all(message.origin == "given" for message in found.messages)


def test_condensed_histories_are_counted(tmp_path: Path) -> None:
    found = loaded(tmp_path, SYSTEM, TASK, {"source": "agent", "action": "condensation", "args": {}})
    assert found.losses == {events.CONDENSED: 1}


def test_a_folder_of_numbered_events_is_one_run_in_order_of_their_numbers(tmp_path: Path) -> None:
    folder = tmp_path / "session" / "events"
    folder.mkdir(parents=True)
    answer = response("r", call("x"))
    for number, event in {2: TASK, 0: SYSTEM, 10: ran("x", answer), 11: output("x", answer, "a.py")}.items():
        (folder / f"{number}.json").write_text(json.dumps(event))
    (found,) = events.load(tmp_path / "session")
    assert found.conversation_id == "session"
    assert [message.role for message in found.messages] == ["system", "user", "assistant", "tool"]


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([SYSTEM, 7], "event 2: neither an action nor an observation but a number"),
        ([{"id": 1}], "event 1: neither an action nor an observation"),
        ([ran("x", {"id": "r", "choices": []})], "event 1: model_response.choices holds no message"),
        ([ran("x", response("r", {"id": "x"}))], "event 1, tool call 1: has no function name"),
        ([{**TASK, "timestamp": "yesterday"}], "event 1: timestamp 'yesterday' is no ISO time"),
        ([{**SYSTEM, "args": {"content": "", "tools": [7]}}], "args.tools: a tool schema is a JSON object"),
    ],
)
def test_events_that_cannot_be_read_are_refused_with_their_place(
    tmp_path: Path, history: list[Any], expected: str
) -> None:
    with pytest.raises(WorkloadError, match=expected) as caught:
        loaded(tmp_path, *history)
    assert str(tmp_path / "output.jsonl, line 1") in str(caught.value)


def test_rows_of_another_format_are_refused_by_its_name(shared: Path) -> None:
    with pytest.raises(WorkloadError, match="not an OpenHands run but tau2-bench results"):
        list(events.load(shared / "data/tau2/mock_max_steps_1sim.json"))
