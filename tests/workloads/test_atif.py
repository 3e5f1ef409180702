import json
from pathlib import Path
from typing import Any

import pytest

from workloads.conversation import Conversation
from workloads.formats import atif
from workloads.formats.chat import NOT_TEXT
from workloads.formats.openai_message import REBUILT_ARGUMENTS
from workloads.formats.openhands import NO_TOOLS
from workloads.render import Renderer
from workloads.sample_paths import TOKENIZER
from workloads.session import WorkloadError

TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
CALLS = [
    {"tool_call_id": "a", "function_name": "search", "arguments": {"ticker": "GOOGL"}},
    {"tool_call_id": "b", "function_name": "search", "arguments": {"ticker": "MSFT"}},
]
RESULTS = [{"source_call_id": "b", "content": "5"}, {"source_call_id": "a", "content": "7"}]


def step(source: str, message: Any = "x", **fields: Any) -> dict[str, Any]:
    return {"step_id": 1, "source": source, "message": message, **fields}


def trajectory(*steps: Any, **fields: Any) -> dict[str, Any]:
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": "s",
        "agent": {"name": "a", "version": "1", "tool_definitions": [TOOL]},
        "steps": [step("system", "be good"), *steps],
        **fields,
    }


def all_of(folder: Path, document: Any) -> list[Conversation]:
    path = folder / "trajectory.json"
    path.write_text(json.dumps(document))
    return list(atif.load(path))


def loaded(folder: Path, *steps: Any) -> Conversation:
    (conversation,) = all_of(folder, trajectory(*steps))
    return conversation


def test_a_step_of_the_agent_is_a_turn_and_its_results(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        step("user", "prices?", timestamp="2025-10-11T10:30:00Z"),
        step("agent", "I look", reasoning_content="hm", tool_calls=CALLS, observation={"results": RESULTS}),
        step("agent", "7 and 5", timestamp="2025-10-11T10:30:05Z"),
    )
    assert [(message.role, message.origin, message.content) for message in found.messages] == [
        ("system", "given", "be good"),
        ("user", "given", "prices?"),
        ("assistant", "model", "I look"),
        ("tool", "given", "5"),
        ("tool", "given", "7"),
        ("assistant", "model", "7 and 5"),
    ]
    turn, first = found.messages[2:4]
    assert (turn.reasoning, turn.tool_calls[0].arguments) == ("hm", '{"ticker": "GOOGL"}')
    assert (first.tool_call_id, first.name) == ("b", "search")
    assert found.tools == (TOOL,)
    assert found.losses == {REBUILT_ARGUMENTS: 2}
    assert len(Renderer(TOKENIZER).render(found).turns) == 2


def test_results_that_answer_no_call_are_user_messages_that_carry_a_result(tmp_path: Path) -> None:
    found = loaded(tmp_path, step("agent", "ls", observation={"results": [{"content": "$ ls\na.py"}]}))
    last = found.messages[-1]
    assert (last.role, last.content, last.carries_result) == ("user", "$ ls\na.py", True)


def test_copied_steps_and_steps_without_a_model_call_are_given_and_counted(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        step("agent", "a", is_copied_context=True),
        step("agent", "b", llm_call_count=0),
        step("agent", "c", llm_call_count=3),
        step("agent", "d", llm_call_count=1),
    )
    assert [message.origin for message in found.messages[1:]] == ["given", "given", "model", "model"]
    assert found.losses == {atif.COPIED: 1, atif.NO_MODEL: 1, atif.MANY_CALLS: 1}


def test_system_events_images_and_results_kept_elsewhere_are_counted(tmp_path: Path) -> None:
    elsewhere = {"source_call_id": "a", "subagent_trajectory_ref": [{"trajectory_path": "x.json"}]}
    parts = [{"type": "text", "text": "see"}, {"type": "image", "source": {"path": "a.png"}}]
    found = loaded(
        tmp_path,
        step("system", "compacting", observation={"results": [{"content": "done"}]}),
        step("user", parts),
        step("agent", "", tool_calls=CALLS[:1], observation={"results": [elsewhere]}),
    )
    assert found.messages[2].content == "see"
    assert found.losses == {atif.SYSTEM_EVENTS: 1, NOT_TEXT: 1, REBUILT_ARGUMENTS: 1, atif.ELSEWHERE: 1}


def test_a_trajectory_without_system_step_and_tools_says_so(tmp_path: Path) -> None:
    steps = [step("user"), step("agent", "", tool_calls=CALLS)]
    (found,) = all_of(tmp_path, trajectory(steps=steps, agent={"name": "a"}))
    assert found.losses == {atif.NO_SYSTEM: 1, NO_TOOLS: 1, REBUILT_ARGUMENTS: 2}


def test_sub_agents_of_the_file_are_conversations_of_the_same_task(tmp_path: Path) -> None:
    inner = trajectory(step("agent"), session_id=None, trajectory_id="inner")
    found = all_of(tmp_path, trajectory(step("agent"), subagent_trajectories=[inner]))
    assert [(one.conversation_id, one.task_id) for one in found] == [("s", "s"), ("s/inner", "s")]


def test_a_folder_gives_its_trajectories_at_any_depth(tmp_path: Path) -> None:
    for name in ("b", "a"):
        folder = tmp_path / name / "agent"
        folder.mkdir(parents=True)
        (folder / "trajectory.json").write_text(json.dumps(trajectory(step("agent"), session_id=name)))
        (folder / "result.json").write_text("{}")
    assert [one.conversation_id for one in atif.load(tmp_path)] == ["a", "b"]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"steps": []}, "not an ATIF trajectory but an object"),
        ({**trajectory(), "schema_version": "ATIF-v2.0"}, "schema_version ATIF-v2.0 is unknown; known are ATIF-v1.0"),
        (trajectory(step("robot")), "step 2: source must be system, user or agent, found 'robot'"),
        (trajectory(7), "step 2: source must be system, user or agent, found a number"),
        (trajectory(step("agent", tool_calls=[{}])), "step 2, tool call 1: has no function_name"),
        (trajectory(step("agent", observation={"results": [7]})), "step 2, result 1: expected a result"),
        (trajectory(subagent_trajectories=[7]), "sub-agent 1: not an ATIF trajectory but a number"),
        (trajectory(session_id=7), "session_id: must be text"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(tmp_path: Path, document: Any, expected: str) -> None:
    with pytest.raises(WorkloadError, match=expected) as caught:
        all_of(tmp_path, document)
    assert str(tmp_path / "trajectory.json") in str(caught.value)
