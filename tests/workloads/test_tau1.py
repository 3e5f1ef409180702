import json
from pathlib import Path
from typing import Any

import pytest

from workloads.formats import tau1
from workloads.formats.chat import NULL_CONTENT
from workloads.formats.openhands import NO_TOOLS
from workloads.formats.pairing import UNPAIRED
from workloads.session import WorkloadError


def call(call_id: str, name: str) -> dict[str, Any]:
    return {"function": {"arguments": '{"user_id":"x"}', "name": name}, "id": call_id, "type": "function"}


def run(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"task_id": 3, "reward": 0.0, "info": {}, "traj": list(messages), "trial": 1} | fields


def test_real_results_give_every_assistant_message_as_a_turn(shared: Path) -> None:
    runs = list(tau1.load(shared / "data/tau1/gpt-4o-airline_12.json"))
    messages = [message for one in runs for message in one.messages]
    assert (len(runs), sum(one.origin == "model" for one in messages), len(messages)) == (12, 177, 378)
    assert all(one.messages[0].role == "system" for one in runs)
    assert [one.conversation_id for one in runs] == [f"{number}/0" for number in range(12)]
    assert sum(one.losses.get(NO_TOOLS, 0) for one in runs) == 9
    assert not any(UNPAIRED in one.losses for one in runs)


def test_real_results_without_their_tool_names_are_paired_as_recorded_though_ids_stand_for_two_calls(
    shared: Path, tmp_path: Path
) -> None:
    runs = json.loads((shared / "data/tau1/gpt-4o-airline_12.json").read_text())
    results = [message for one in runs for message in one["traj"] if message["role"] == "tool"]
    recorded = [message.pop("name") for message in results]
    path = tmp_path / "results.json"
    path.write_text(json.dumps(runs))
    paired = [message.name for one in tau1.load(path) for message in one.messages if message.role == "tool"]
    assert paired == recorded
    names_of_one_id = {
        name
        for name, message in zip(recorded, results, strict=True)
        if message["tool_call_id"] == "call_oIHazX6yQrB8hUwl4cRilFKj"
    }
    assert names_of_one_id >= {"get_user_details", "calculate"}


def test_the_few_shot_file_without_its_calls_is_refused(shared: Path) -> None:
    with pytest.raises(WorkloadError, match=r"line 1: messages_display is one text .* use the results that run\.py"):
        list(tau1.load(shared / "data/tau1/retail_few_shot_10.jsonl"))


def test_arguments_stay_compact_and_null_contents_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    answer = {"function_call": None, "role": "assistant", "content": None, "tool_calls": [call("c", "look_up")]}
    path.write_text(json.dumps([run({"role": "user", "content": "hi"}, answer)]))
    (one,) = tau1.load(path)
    assert one.messages[1].tool_calls[0].arguments == '{"user_id":"x"}'
    assert one.losses == {NULL_CONTENT: 1, NO_TOOLS: 1}
    assert (one.conversation_id, one.task_id) == ("3/1", "3")


def test_a_run_that_failed_at_once_has_no_messages(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps([run(traj=[], info={"error": "timeout"})]))
    (one,) = tau1.load(path)
    assert one.messages == ()


@pytest.mark.parametrize("head", [run(), [run()], {"messages_display": "user: hi"}])
def test_rows_and_lists_of_rows_are_recognised(head: Any) -> None:
    assert tau1.matches(head)


@pytest.mark.parametrize("head", [None, 7, "x", [], [7], {}, {"traj": []}, {"task_id": 1, "messages": []}])
def test_anything_else_is_not(head: Any) -> None:
    assert not tau1.matches(head)


def test_another_format_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"hash_ids": [1]}]))
    with pytest.raises(WorkloadError, match="row 1: not tau-bench v1 results but a trace of block hashes"):
        list(tau1.load(path))
