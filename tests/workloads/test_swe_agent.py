import json
from pathlib import Path
from typing import Any

import pytest

from workloads.conversation import Conversation
from workloads.formats import swe_agent
from workloads.formats.chat import NULL_CONTENT
from workloads.formats.openhands import NO_TOOLS
from workloads.formats.pairing import UNPAIRED
from workloads.session import WorkloadError

# Counted in the files: assistant messages, other messages, sessions without the tools that they call.
REAL = {"ctf": (18, 19, 0), "function": (5, 7, 1), "gpt4": (5, 7, 0), "mallow": (11, 12, 0), "play": (11, 13, 1)}
CALL = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}


def entry(role: str, content: Any = "x", **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "agent": "main", **fields}


def loaded(folder: Path, *history: Any, **row: Any) -> Conversation:
    path = folder / "one.traj"
    path.write_text(json.dumps({"history": list(history), **row}))
    (conversation,) = swe_agent.load(path)
    return conversation


def rows(folder: Path, *trajectory: dict[str, Any], **row: Any) -> Conversation:
    path = folder / "rows.jsonl"
    path.write_text(json.dumps({"instance_id": "a__b-7_17", "trajectory": list(trajectory), **row}))
    (conversation,) = swe_agent.load(path)
    return conversation


def said(role: str, text: str | None, *, system: str | None = None, mask: bool = False) -> dict[str, Any]:
    return {"cutoff_date": None, "mask": mask, "role": role, "system_prompt": system, "text": text}


@pytest.mark.parametrize("beginning", REAL)
def test_real_files_of_every_generation_give_each_answer_as_a_turn(shared: Path, beginning: str) -> None:
    (path,) = (shared / "data/sweagent_traj").glob(f"{beginning}*")
    (found,) = swe_agent.load(path)
    turns = sum(message.origin == "model" for message in found.messages)
    assert (turns, len(found.messages) - turns, found.losses.get(NO_TOOLS, 0)) == REAL[beginning]
    assert found.losses.keys() <= {NO_TOOLS}
    assert found.task_id == path.name.removesuffix(".traj")


def test_a_real_folder_gives_all_of_its_files(shared: Path) -> None:
    assert len(list(swe_agent.load(shared / "data/sweagent_traj"))) == 5


def test_real_nebius_rows_give_the_answers_of_role_ai_as_turns(shared: Path) -> None:
    found = list(swe_agent.load(shared / "data/sweagent_nebius/rows_3.jsonl"))
    assert [sum(message.origin == "model" for message in one.messages) for one in found] == [6, 14, 5]
    assert all(one.messages[0].content.startswith("SETTING: You are an autonomous programmer") for one in found)
    assert found[0].task_id == "tomerfiliba__plumbum-366"
    assert all(one.losses == {} for one in found)


def test_a_result_names_its_call_in_a_list(tmp_path: Path) -> None:
    found = loaded(tmp_path, entry("user"), entry("assistant", tool_calls=[CALL]), entry("tool", tool_call_ids=["c"]))
    assert (found.messages[2].tool_call_id, found.messages[2].name) == ("c", "bash")
    assert found.losses == {NO_TOOLS: 1}


def test_a_result_for_several_calls_goes_to_the_first_and_is_counted(tmp_path: Path) -> None:
    calls = [CALL, {**CALL, "id": "d"}]
    found = loaded(tmp_path, entry("assistant", tool_calls=calls), entry("tool", tool_call_ids=["c", "d"]))
    assert found.messages[1].tool_call_id == "c"
    assert found.losses == {NO_TOOLS: 1, swe_agent.MANY_ANSWERED: 1}


def test_a_result_without_ids_is_counted(tmp_path: Path) -> None:
    assert loaded(tmp_path, entry("user"), entry("tool", tool_call_ids=[])).losses == {UNPAIRED: 1}


def test_a_demonstration_is_given_whoever_speaks_in_it(tmp_path: Path) -> None:
    demo = [entry("user", "shown", is_demo=True), entry("assistant", "shown", is_demo=True)]
    found = loaded(tmp_path, entry("system"), *demo, entry("user"), entry("assistant"), entry("user", "out"))
    assert [message.origin for message in found.messages].count("model") == 1
    assert [message.carries_result for message in found.messages] == [False] * 5 + [True]


def test_messages_of_a_sub_agent_are_left_out_and_counted(tmp_path: Path) -> None:
    found = loaded(tmp_path, entry("user"), entry("assistant"), entry("assistant", agent="other"))
    assert len(found.messages) == 2
    assert found.losses == {swe_agent.OTHER_AGENT: 1}


def test_turns_whose_prompt_was_shortened_are_counted(tmp_path: Path) -> None:
    history = [entry("user", "fix"), entry("assistant", "a"), entry("user", "long"), entry("assistant", "b")]
    whole = [{"query": [entry("user", "fix")]}, {"query": history[:3]}]
    assert loaded(tmp_path, *history, trajectory=whole).losses == {}
    cached = [{"type": "text", "text": "fix", "cache_control": {"type": "ephemeral"}}]
    assert loaded(tmp_path, *history, trajectory=[{"query": [entry("user", cached)]}, whole[1]]).losses == {}
    cut = [whole[0], {"query": [*history[:2], entry("user", "Old environment output: (3 lines omitted)")]}]
    assert loaded(tmp_path, *history, trajectory=cut).losses == {swe_agent.SHORTENED: 1}


def test_nebius_answers_with_mask_false_are_given_and_null_text_is_counted(tmp_path: Path) -> None:
    found = rows(
        tmp_path,
        said("system", None, system="be good"),
        said("user", None),
        said("ai", "shown"),
        said("ai", "learned", mask=True),
        model_name="m",
    )
    assert [message.origin for message in found.messages] == ["given", "given", "given", "model"]
    assert [message.content for message in found.messages] == ["be good", "", "shown", "learned"]
    assert found.losses == {NULL_CONTENT: 1, swe_agent.NOT_LEARNED: 1}
    assert (found.conversation_id, found.task_id) == ("a__b-7_17/m", "a__b-7")


def test_files_lie_at_any_depth_and_may_be_compressed(tmp_path: Path) -> None:
    import gzip

    inner = tmp_path / "run" / "a"
    inner.mkdir(parents=True)
    document = json.dumps({"history": [entry("assistant")]}).encode()
    (inner / "a.traj").write_bytes(document)
    (inner / "b.traj.gz").write_bytes(gzip.compress(document))
    (inner / "config.json").write_text("{}")
    assert [one.conversation_id for one in swe_agent.load(tmp_path)] == ["a", "b"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"trajectory": [{"action": "ls", "observation": "a"}]}, "a SWE-agent trajectory without history"),
        ({"history": [entry("robot")]}, "history, message 1: unknown role 'robot'"),
        ({"history": [entry("assistant", tool_calls=[{}])]}, "message 1, tool call 1: has no function name"),
        ({"history": [entry("tool", tool_call_ids="c")]}, "message 1: tool_call_ids must be a list"),
        ({"history": [entry("tool", tool_call_ids=[1])]}, "message 1, tool_call_id: must be text"),
        ({"history": "x"}, "not a SWE-agent trajectory but an object"),
        ({"history": [7]}, "not a SWE-agent trajectory but an object"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(tmp_path: Path, row: dict[str, Any], expected: str) -> None:
    path = tmp_path / "one.traj"
    path.write_text(json.dumps(row))
    with pytest.raises(WorkloadError, match=expected) as caught:
        list(swe_agent.load(path))
    assert str(path) in str(caught.value)
