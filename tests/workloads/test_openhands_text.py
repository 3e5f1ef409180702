import json
from pathlib import Path
from typing import Any

import pytest

from workloads.conversation import Conversation
from workloads.formats import openhands_text
from workloads.formats.openhands import NO_TOOLS
from workloads.render import Renderer
from workloads.sample_paths import TOKENIZER
from workloads.session import WorkloadError

CALL = "look\n\n<function=bash>\n<parameter=command>ls</parameter>\n</function>"
TALK = [
    {"role": "system", "content": "use <function=…>"},
    {"role": "user", "content": "fix it"},
    {"role": "assistant", "content": CALL},
    {"role": "user", "content": "OBSERVATION:\na.py"},
    {"role": "assistant", "content": "done"},
]


def loaded(folder: Path, messages: Any, **row: Any) -> Conversation:
    path = folder / "rows.jsonl"
    path.write_text(json.dumps({"instance_id": "a__b.1", "traj_id": "a__b.1.x", "messages": messages, **row}))
    (conversation,) = openhands_text.load(path)
    return conversation


# Counted in the files: sessions, assistant messages, other messages.
@pytest.mark.parametrize(
    ("name", "counts"),
    [("swesmith_openhands_text/rows_3.jsonl", (3, 56, 59)), ("sweplay_openhands_text/rows_2.jsonl", (2, 43, 45))],
)
def test_real_rows_keep_calls_as_text_and_results_as_user_messages(
    shared: Path, name: str, counts: tuple[int, int, int]
) -> None:
    found = list(openhands_text.load(shared / "data" / name))
    messages = [message for one in found for message in one.messages]
    turns = [message for message in messages if message.origin == "model"]
    assert (len(found), len(turns), len(messages) - len(turns)) == counts
    assert sum("<function=" in message.content for message in turns) >= len(turns) - len(found)
    assert not any(message.tool_calls or message.role == "tool" for message in messages)
    assert all(one.losses == {} for one in found)
    users = [message for message in messages if message.role == "user"]
    assert sum(not message.carries_result for message in users) == len(found)


def test_text_keeps_its_call_and_only_what_follows_an_answer_is_a_result(tmp_path: Path) -> None:
    found = loaded(tmp_path, TALK)
    assert found.messages[2].content == CALL
    assert [message.carries_result for message in found.messages] == [False, False, False, True, False]
    assert (found.conversation_id, found.task_id) == ("a__b.1.x", "a__b.1")


def test_turns_after_a_result_that_is_text_are_tool_turns(tmp_path: Path) -> None:
    session = Renderer(TOKENIZER).render(loaded(tmp_path, TALK))
    assert [turn.kind for turn in session.turns] == ["first", "tool"]


def test_messages_stored_as_json_text_are_read(tmp_path: Path) -> None:
    assert loaded(tmp_path, json.dumps(TALK)).messages == loaded(tmp_path, TALK).messages


def test_the_split_with_tool_calls_is_read_as_swe_agent_kept_it(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
    found = loaded(
        tmp_path,
        [
            {"role": "user", "content": [{"type": "text", "text": "fix it"}]},
            {"role": "assistant", "content": "look", "tool_calls": [call]},
            {"role": "tool", "content": [{"type": "text", "text": "a.py"}], "tool_call_ids": ["c"]},
        ],
    )
    assert [(message.content, message.tool_call_id) for message in found.messages] == [
        ("fix it", None),
        ("look", None),
        ("a.py", "c"),
    ]
    assert found.losses == {NO_TOOLS: 1}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (None, "line 1: not rows of messages but an object"),
        ("[{", "line 1: not rows of messages"),
        ([{"role": "user"}, 7], "line 1: not rows of messages"),
        ([{"role": "ai", "content": "x"}], "line 1, message 1: unknown role 'ai'"),
        ([{"role": "user", "content": 5}], "line 1, message 1: content must be text or a list of parts"),
    ],
)
def test_rows_that_cannot_be_read_are_refused_with_their_place(tmp_path: Path, messages: Any, expected: str) -> None:
    with pytest.raises(WorkloadError, match=expected):
        loaded(tmp_path, messages)
