import json
from pathlib import Path
from typing import Any

import pytest

from workloads.conversation import Conversation
from workloads.formats import claude_code, claude_code_thread
from workloads.formats.chat import NOT_TEXT
from workloads.formats.openai_message import REBUILT_ARGUMENTS
from workloads.formats.pairing import UNPAIRED
from workloads.session import WorkloadError

NO_PROMPT = {claude_code_thread.NO_PROMPT: 1}

# Counted in the files: sessions, answers, other messages, and what they lack.
REAL: dict[str, tuple[int, int, int, dict[str, int]]] = {
    "edge_cases.jsonl": (2, 4, 7, {REBUILT_ARGUMENTS: 3, claude_code.MALFORMED: 7, claude_code.NO_MESSAGE: 1}),
    "sample_session.json": (2, 15, 18, {REBUILT_ARGUMENTS: 12, claude_code.COMPACTED: 1}),
    "session_b.jsonl": (1, 1, 2, {}),
    "todowrite_examples.jsonl": (1, 6, 5, {REBUILT_ARGUMENTS: 3, claude_code.NO_MESSAGE: 1}),
}


def user(uuid: str, content: Any, parent: str | None = None, **fields: Any) -> dict[str, Any]:
    message = {"role": "user", "content": content}
    return {"type": "user", "uuid": uuid, "parentUuid": parent, "sessionId": "s", "message": message, **fields}


def answer(
    uuid: str, message_id: str | None, *parts: Any, parent: str | None = None, **fields: Any
) -> dict[str, Any]:
    message = {"role": "assistant", "id": message_id, "content": list(parts), "model": "claude"}
    return {"type": "assistant", "uuid": uuid, "parentUuid": parent, "sessionId": "s", "message": message, **fields}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def use(call_id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": "Bash", "input": {"command": "ls"}}


def result(call_id: str, content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def all_of(folder: Path, *records: Any) -> list[Conversation]:
    path = folder / "s.jsonl"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in records))
    return list(claude_code.load(path))


def loaded(folder: Path, *records: Any) -> Conversation:
    (conversation,) = all_of(folder, *records)
    return conversation


@pytest.mark.parametrize("name", REAL)
def test_real_sessions_keep_every_message_and_count_every_other_line(shared: Path, name: str) -> None:
    path = shared / "data/claude_code" / name
    found = list(claude_code.load(path))
    losses: dict[str, int] = {}
    for one in found:
        for reason, count in one.losses.items():
            losses[reason] = losses.get(reason, 0) + count
    assert losses.pop(claude_code_thread.NO_PROMPT) == len(found)
    messages = [message for one in found for message in one.messages]
    turns = sum(message.origin == "model" for message in messages)
    assert (len(found), turns, len(messages) - turns, losses) == REAL[name]
    document = path.read_text()
    lines = len(json.loads(document)["loglines"]) if path.suffix == ".json" else len(document.splitlines())
    dropped = losses.get(claude_code.MALFORMED, 0) + losses.get(claude_code.NO_MESSAGE, 0)
    assert len(messages) + dropped == lines


def test_records_of_one_message_are_one_turn_even_around_results(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        user("1", "go"),
        answer("2", "m", {"type": "thinking", "thinking": "hm", "signature": "x"}),
        answer("3", "m", text("looking"), timestamp="2025-06-14T11:00:01Z"),
        answer("4", "m", use("a"), timestamp="2025-06-14T11:00:02Z"),
        user("5", [result("a", "A")]),
        answer("6", "m", use("b"), timestamp="2025-06-14T11:00:03Z"),
        user("7", [result("b", [text("B"), {"type": "image", "source": {}}])]),
    )
    assert [message.role for message in found.messages] == ["user", "assistant", "tool", "tool"]
    turn = found.messages[1]
    assert (turn.reasoning, turn.content, [call.call_id for call in turn.tool_calls]) == ("hm", "looking", ["a", "b"])
    assert turn.time_s == 1749898803.0
    assert [(one.tool_call_id, one.name, one.content) for one in found.messages[2:]] == [
        ("a", "Bash", "A"),
        ("b", "Bash", "B"),
    ]
    assert found.losses == NO_PROMPT | {REBUILT_ARGUMENTS: 2, NOT_TEXT: 1, claude_code_thread.RESULT_BETWEEN: 1}


def test_answers_without_an_id_are_turns_of_their_own(tmp_path: Path) -> None:
    found = loaded(tmp_path, user("1", "go"), answer("2", None, text("a")), answer("3", None, text("b")))
    assert [message.content for message in found.messages] == ["go", "a", "b"]


def test_results_and_texts_of_one_record_are_messages_of_their_own(tmp_path: Path) -> None:
    found = loaded(tmp_path, answer("1", "m", use("a")), user("2", [result("a", "A"), text("and now?")]))
    assert [(message.role, message.content) for message in found.messages[1:]] == [
        ("tool", "A"),
        ("user", "and now?"),
    ]


def test_damaged_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    huge = '{"type": "user", "n": ' + "9" * 5000 + "}"
    found = loaded(tmp_path, user("1", "go"), '"text"', 42, [1], {"silly": 1}, '{"type": "us', huge, user("2", None))
    assert len(found.messages) == 1
    assert found.losses == NO_PROMPT | {claude_code.MALFORMED: 7}


def test_a_repeated_record_is_left_out_and_an_other_record_of_its_uuid_is_kept(tmp_path: Path) -> None:
    found = loaded(tmp_path, user("1", "go"), user("1", "go"), user("1", "on"))
    assert [message.content for message in found.messages] == ["go", "on"]
    assert found.losses == NO_PROMPT | {claude_code.REPEATED: 1}


def test_what_the_user_rewound_is_left_out_and_counted(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        user("1", "go"),
        answer("2", "m", text("a"), parent="1"),
        user("3", "no", "2"),
        answer("4", "n", text("b"), parent="3"),
        user("5", "yes", "2"),
        answer("6", "o", text("c"), parent="5"),
    )
    assert [message.content for message in found.messages] == ["go", "a", "yes", "c"]
    assert found.losses == NO_PROMPT | {claude_code_thread.REWOUND: 2}


def test_prompts_that_were_queued_during_a_tool_rewind_nothing(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        user("1", "go"),
        answer("2", "m", use("a"), parent="1"),
        user("3", [result("a", "A")], "2"),
        user("4", "also this", "3"),
        answer("5", "n", text("b"), parent="4"),
    )
    assert len(found.messages) == 5


def test_sessions_and_sub_agents_of_a_file_are_conversations_of_one_task_each(tmp_path: Path) -> None:
    side = {"isSidechain": True}
    found = all_of(
        tmp_path,
        user("1", "go"),
        user("2", "search", **side),
        answer("3", "m", text("found"), parent="2", **side),
        user("4", "search", "1", agentId="a1", **side),
        user("5", "other", sessionId="t"),
    )
    assert [(one.conversation_id, one.task_id, len(one.messages)) for one in found] == [
        ("s", "s", 1),
        ("s/2", "s", 2),
        ("s/a1", "s", 1),
        ("t", "t", 1),
    ]


def test_a_compacted_session_goes_on_as_a_session_of_the_same_task(tmp_path: Path) -> None:
    found = all_of(
        tmp_path, user("1", "go"), user("2", "so far: …", isCompactSummary=True), answer("3", "m", text("a"))
    )
    assert [(one.conversation_id, one.task_id, len(one.messages)) for one in found] == [
        ("s", "s", 1),
        ("s/part 2", "s", 2),
    ]
    assert found[0].losses == NO_PROMPT | {claude_code.COMPACTED: 1}


def test_errors_that_claude_code_wrote_itself_are_no_turns(tmp_path: Path) -> None:
    note = answer("2", "m", text("API Error"), isApiErrorMessage=True)
    found = loaded(tmp_path, user("1", "go"), note)
    assert len(found.messages) == 1
    assert found.losses == NO_PROMPT | {claude_code_thread.OWN_NOTES: 1}


def test_a_result_that_answers_nothing_is_counted(tmp_path: Path) -> None:
    assert loaded(tmp_path, user("1", [result("a", "A")])).losses == NO_PROMPT | {UNPAIRED: 1}


def test_an_export_holds_what_its_lines_hold(tmp_path: Path) -> None:
    records = [user("1", "go"), answer("2", "m", text("a"))]
    (tmp_path / "export.json").write_text(json.dumps({"loglines": records}))
    (found,) = claude_code.load(tmp_path / "export.json")
    assert found.messages == loaded(tmp_path, *records).messages


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "the file is empty"),
        ("7\n[1]", "no line is a JSON object"),
        ('{"a": 1}', "no message of a Claude Code session in it"),
        (json.dumps({"loglines": []}), "no message of a Claude Code session in it"),
        (json.dumps(user("1", "go", timestamp="x")), "record 1: timestamp 'x' is no ISO time"),
        (json.dumps(answer("1", "m", {"type": "tool_use"})), "record 1: tool_use has no name but null"),
        (json.dumps(user("1", [{**result("a", ""), "tool_use_id": 7}])), "record 1, tool_use_id: must be text"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(content)
    with pytest.raises(WorkloadError, match=expected) as caught:
        list(claude_code.load(path))
    assert str(path) in str(caught.value)
