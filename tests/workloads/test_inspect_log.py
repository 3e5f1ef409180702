import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from workloads.conversation import Conversation
from workloads.formats import inspect_events, inspect_log
from workloads.formats.chat import NOT_TEXT
from workloads.formats.openai_message import REBUILT_ARGUMENTS
from workloads.formats.openhands import NO_TOOLS
from workloads.formats.pairing import UNPAIRED
from workloads.session import WorkloadError

# Counted in the files: samples, answers, other messages, and what they lack.
REAL: dict[str, tuple[int, int, int, dict[str, int]]] = {
    "2025-05-12T20-28-26-04-00_security-guide.json": (3, 3, 6, {}),
    "log_images_tc.json": (1, 1, 2, {NOT_TEXT: 1}),
    "log_message_deduplication.eval": (1, 6, 6, {REBUILT_ARGUMENTS: 5}),
    "log_streaming.eval": (4, 4, 8, {}),
    "log_tool_call_error.json": (1, 0, 11, {inspect_log.TOOL_ERRORS: 11, UNPAIRED: 11}),
}
CALL = {"id": "c", "function": "bash", "arguments": {"cmd": "ls"}, "type": "function"}
TALK: list[dict[str, Any]] = [
    {"id": "1", "role": "system", "content": "be good"},
    {"id": "2", "role": "user", "content": "fix it", "source": "input"},
    {"id": "3", "role": "assistant", "content": "look", "tool_calls": [CALL], "source": "generate"},
    {"id": "4", "role": "tool", "content": "a.py", "tool_call_id": "c", "function": "bash"},
]
TOOL = {"name": "bash", "description": "attachment://d", "parameters": {"type": "object"}}


def model(message: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"event": "model", "input": [], "tools": [TOOL], "output": {"choices": [{"message": message}]}, **fields}


def log(*samples: Any, **fields: Any) -> dict[str, Any]:
    return {"version": 2, "eval": {"task": "t"}, "plan": {}, "samples": list(samples), **fields}


def loaded(folder: Path, messages: Any, **sample: Any) -> Conversation:
    path = folder / "log.json"
    path.write_text(json.dumps(log({"id": 7, "epoch": 2, "messages": messages, **sample})))
    (conversation,) = inspect_log.load(path)
    return conversation


def archived(path: Path, members: dict[str, Any]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in members.items():
            archive.writestr(name, value if isinstance(value, str) else json.dumps(value))
    return path


@pytest.mark.parametrize("name", REAL)
def test_real_logs_give_a_conversation_a_sample_and_say_what_they_lack(shared: Path, name: str) -> None:
    found = list(inspect_log.load(shared / "data/inspect_ai" / name))
    messages = [message for one in found for message in one.messages]
    losses: dict[str, int] = {}
    for one in found:
        for reason, count in one.losses.items():
            losses[reason] = losses.get(reason, 0) + count
    turns = sum(message.origin == "model" for message in messages)
    assert (len(found), turns, len(messages) - turns, losses) == REAL[name]


def test_a_real_archive_gives_tools_latencies_and_the_end_of_each_tool(shared: Path) -> None:
    (found,) = inspect_log.load(shared / "data/inspect_ai/log_message_deduplication.eval")
    names = [tool["function"]["name"] for tool in found.tools]
    assert names[:2] == ["bash", "python"]
    assert found.tools[1]["function"]["description"].startswith("Use the python function to execute Python code.")
    turns = [message for message in found.messages if message.origin == "model"]
    assert all(message.latency_s is not None and message.time_s is not None for message in turns)
    assert all(message.time_s is not None for message in found.messages if message.role == "tool")


def test_real_samples_read_from_the_message_pool_are_the_messages_of_the_sample(shared: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(shared / "data/inspect_ai/log_message_deduplication.eval") as archive:
        sample = json.loads(archive.read("samples/0_epoch_1.json"))
    whole = loaded(tmp_path, **sample)
    pooled = loaded(tmp_path, **{**sample, "messages": []})
    assert pooled.messages == whole.messages
    assert pooled.losses == {**whole.losses, inspect_log.FROM_EVENTS: 1}


def test_a_sample_is_named_by_task_id_and_epoch_and_epochs_share_the_task(tmp_path: Path) -> None:
    found = loaded(tmp_path, TALK)
    assert (found.conversation_id, found.task_id) == ("t/7/2", "t/7")
    assert [message.origin for message in found.messages] == ["given", "given", "model", "given"]
    assert found.messages[2].tool_calls[0].arguments == '{"cmd": "ls"}'
    assert found.losses == {REBUILT_ARGUMENTS: 1, NO_TOOLS: 1}


def test_attachments_are_put_back_and_missing_ones_are_counted(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "attachment://u"}, {"role": "assistant", "content": "attachment://gone"}]
    found = loaded(tmp_path, messages, attachments={"u": "long text"})
    assert [message.content for message in found.messages] == ["long text", "attachment://gone"]
    assert found.losses == {inspect_events.MISSING: 1}


def test_events_give_tools_times_and_the_argument_text_as_written(tmp_path: Path) -> None:
    raw = {"choices": [{"message": {"tool_calls": [{"id": "c", "function": {"arguments": '{"cmd":"ls"}'}}]}}]}
    event = model(TALK[2], completed="2025-01-01T00:00:02+00:00", working_time=1.5, call={"response": raw})
    tool = {"event": "tool", "id": "c", "completed": "2025-01-01T00:00:05+00:00"}
    found = loaded(tmp_path, TALK, events=[event, tool], attachments={"d": "runs commands"})
    answer, result = found.messages[2:]
    assert (answer.latency_s, answer.tool_calls[0].arguments) == (1.5, '{"cmd":"ls"}')
    assert answer.time_s is not None
    assert result.time_s == answer.time_s + 3
    assert found.tools[0]["function"] == {**TOOL, "description": "runs commands"}
    assert found.losses == {}


def test_turns_that_saw_other_tools_are_counted(tmp_path: Path) -> None:
    last = {"id": "5", "role": "assistant", "content": "done"}
    found = loaded(tmp_path, [*TALK, last], events=[model(TALK[2]), model(last, tools=[])], attachments={"d": ""})
    assert len(found.tools) == 1
    assert found.losses == {REBUILT_ARGUMENTS: 1, inspect_events.OTHER_TOOLS: 1}


def test_reasoning_is_no_text_and_images_are_counted(tmp_path: Path) -> None:
    parts = [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "a"}, {"type": "image", "image": ""}]
    found = loaded(tmp_path, [{"role": "assistant", "content": parts}])
    assert (found.messages[0].reasoning, found.messages[0].content) == ("hm", "a")
    assert found.losses == {NOT_TEXT: 1}


def test_answers_of_the_input_are_given_and_counted(tmp_path: Path) -> None:
    shown = {"role": "assistant", "content": "like this", "source": "input"}
    found = loaded(tmp_path, [TALK[1], shown, TALK[1], {"role": "assistant", "content": "a"}])
    assert [message.origin for message in found.messages] == ["given", "given", "given", "model"]
    assert found.losses == {inspect_log.EXAMPLES: 1}


def test_a_result_that_is_an_error_shows_the_error(tmp_path: Path) -> None:
    failed = {**TALK[3], "content": "", "error": {"type": "timeout", "message": "too slow"}}
    found = loaded(tmp_path, [*TALK[:3], failed])
    assert found.messages[-1].content == "too slow"
    assert found.losses == {REBUILT_ARGUMENTS: 1, NO_TOOLS: 1, inspect_log.TOOL_ERRORS: 1}


def test_an_archive_of_an_unfinished_log_is_read(tmp_path: Path) -> None:
    members = {"_journal/start.json": {"eval": {"task": "t"}}, "samples/7_epoch_1.json": {"id": 7, "messages": TALK}}
    (found,) = inspect_log.load(archived(tmp_path / "log.eval", members))
    assert found.conversation_id == "t/7/1"


def test_a_folder_gives_every_log_in_it(shared: Path) -> None:
    assert len(list(inspect_log.load(shared / "data/inspect_ai"))) == 10


HEADER = {"header.json": {"eval": {"task": "t"}}}


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"a.txt": "x"}, "an archive without header.json, so no Inspect log"),
        (HEADER, "a log without samples"),
        ({"header.json": "[", "samples/1_epoch_1.json": "{}"}, "header.json: broken JSON"),
        ({"header.json": [7], "samples/1_epoch_1.json": "{}"}, "header.json names no eval.task"),
        ({**HEADER, "samples/1_epoch_1.json": "{"}, "samples/1_epoch_1.json: broken JSON"),
        ({**HEADER, "samples/1_epoch_1.json": "7"}, "samples/1_epoch_1.json: expected a sample, found a number"),
        (None, "not a whole .eval archive"),
    ],
)
def test_archives_that_cannot_be_read_are_refused_with_their_place(
    tmp_path: Path, members: dict[str, Any] | None, expected: str
) -> None:
    path = tmp_path / "log.eval"
    if members is None:
        path.write_bytes(b"PK\x03\x04 and no more")
    else:
        archived(path, members)
    with pytest.raises(WorkloadError, match=expected) as caught:
        list(inspect_log.load(path))
    assert str(path) in str(caught.value)


def test_a_member_compressed_in_an_unknown_way_names_the_way_out(tmp_path: Path) -> None:
    path = archived(tmp_path / "log.eval", {**HEADER, "samples/1_epoch_1.json": {"messages": TALK}})
    deflated, zstandard = (number.to_bytes(2, "little") for number in (zipfile.ZIP_DEFLATED, 93))
    data = path.read_bytes()
    local, central = b"PK\x03\x04", b"PK\x01\x02"
    for signature, offset in ((local, 8), (central, 10)):
        at = data.find(signature)
        while at >= 0:
            assert data[at + offset : at + offset + 2] == deflated
            data = data[: at + offset] + zstandard + data[at + offset + 2 :]
            at = data.find(signature, at + 4)
    path.write_bytes(data)
    with pytest.raises(WorkloadError, match="inspect log convert"):
        list(inspect_log.load(path))


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"a": 1}, "not an Inspect log but an object"),
        (log(), r"a log without samples \(header only\)"),
        (log(7), "sample 1: expected a sample, found a number"),
        (log({"messages": [{"role": "robot"}]}), "sample 1, message 1: unknown role 'robot'"),
        (
            log({"messages": [{**TALK[2], "tool_calls": [{"id": "c"}]}]}),
            "message 1, tool call 1: has no function name",
        ),
        (log({"messages": TALK, "events": 7}), "sample 1: events must be a list"),
    ],
)
def test_documents_that_cannot_be_read_are_refused_with_their_place(
    tmp_path: Path, document: Any, expected: str
) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(document))
    with pytest.raises(WorkloadError, match=expected) as caught:
        list(inspect_log.load(path))
    assert str(path) in str(caught.value)
