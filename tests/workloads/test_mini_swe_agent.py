import json
from pathlib import Path
from typing import Any

import pytest

from workloads.conversation import Conversation
from workloads.formats import mini_swe_agent
from workloads.formats.chat import NULL_CONTENT
from workloads.formats.openhands import NO_TOOLS
from workloads.session import WorkloadError

CALL = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
TALK = [
    {"role": "system", "content": "one command"},
    {"role": "user", "content": "fix it"},
    {"role": "assistant", "content": "THOUGHT\n\n```bash\nls\n```"},
    {"role": "user", "content": "<returncode>0</returncode>"},
]


def loaded(folder: Path, document: Any, name: str = "a__b-7.traj.json") -> Conversation:
    path = folder / name
    path.write_text(json.dumps(document, indent=1))
    (conversation,) = mini_swe_agent.load(path)
    return conversation


# Counted in the files: assistant messages, other messages.
@pytest.mark.parametrize(
    ("name", "counts", "task"),
    [
        ("github_issue.traj.json", (10, 12), "github_issue"),
        ("mini-coder_row.json", (8, 9), "mozilla__bleach.73871d76.func_pm_remove_cond__lq60cp3u"),
    ],
)
def test_real_files_give_each_answer_as_a_turn(shared: Path, name: str, counts: tuple[int, int], task: str) -> None:
    (found,) = mini_swe_agent.load(shared / "data/mini_swe_agent" / name)
    turns = sum(message.origin == "model" for message in found.messages)
    assert (turns, len(found.messages) - turns) == counts
    assert (found.task_id, found.losses) == (task, {})
    assert sum(message.carries_result for message in found.messages) == counts[1] - 2


def test_a_bare_list_an_object_and_a_row_hold_the_same_messages(tmp_path: Path) -> None:
    bare = loaded(tmp_path, TALK)
    whole = loaded(tmp_path, {"info": {}, "messages": TALK, "trajectory_format": "mini-swe-agent-1"})
    row = loaded(tmp_path, [{"messages": TALK, "instance_id": "a__b-7", "id": "x"}])
    assert bare.messages == whole.messages == row.messages
    assert [one.task_id for one in (bare, whole, row)] == ["a__b-7"] * 3
    assert row.conversation_id == "x"


def test_format_1_1_keeps_calls_times_and_reasoning_and_drops_the_exit_note(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        {
            "info": {"exit_status": "Submitted"},
            "trajectory_format": "mini-swe-agent-1.1",
            "messages": [
                {"role": "user", "content": "fix it", "extra": {}},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [CALL],
                    "reasoning_content": "hm",
                    "extra": {"timestamp": 100.5, "actions": [{"command": "ls"}]},
                },
                {"role": "tool", "tool_call_id": "c", "content": "a.py", "extra": {"timestamp": 102}},
                {"role": "exit", "content": "diff", "extra": {"exit_status": "Submitted"}},
            ],
        },
    )
    answer, result = found.messages[1:]
    assert (answer.reasoning, answer.time_s, answer.tool_calls[0].arguments) == ("hm", 100.5, '{"command":"ls"}')
    assert (result.role, result.name, result.time_s) == ("tool", "bash", 102)
    assert found.losses == {NULL_CONTENT: 1, NO_TOOLS: 1, mini_swe_agent.EXIT: 1}


def test_a_run_that_never_asked_its_model_is_a_conversation_without_messages(tmp_path: Path) -> None:
    assert loaded(tmp_path, {"messages": [], "trajectory_format": "mini-swe-agent-1.1"}).messages == ()


def test_files_lie_at_any_depth_of_a_folder(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.traj.json").write_text(json.dumps(TALK))
    (tmp_path / "preds.json").write_text("{}")
    assert [one.conversation_id for one in mini_swe_agent.load(tmp_path)] == ["a", "b"]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ([7], "row 1: not a mini-swe-agent trajectory but a number"),
        ({"messages": [7]}, "not a mini-swe-agent trajectory but an object with the keys messages"),
        ([{"role": "ai", "content": "x"}], "message 1: unknown role 'ai'"),
        ([{"role": "user", "content": 5}], "message 1: content must be text or a list of parts"),
        ({"messages": [{"object": "response", "output": []}]}, "message 1: an item of OpenAI's Responses interface"),
        (
            {"messages": [{"role": "user", "content": "", "extra": {"timestamp": "x"}}]},
            "message 1: timestamp 'x' is no ISO time",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(tmp_path: Path, document: Any, expected: str) -> None:
    with pytest.raises(WorkloadError, match=expected) as caught:
        loaded(tmp_path, document)
    assert str(tmp_path / "a__b-7.traj.json") in str(caught.value)
