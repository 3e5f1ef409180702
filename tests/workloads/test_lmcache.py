import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from workloads.conversation import Conversation
from workloads.formats import lmcache
from workloads.session import WorkloadError

FOLDER = "data/lmcache_agent_trace"


def line(timestamp: float, prompt: str, output: str, session_id: str = "s") -> dict[str, Any]:
    return {"timestamp": timestamp, "input": prompt, "output": output, "session_id": session_id}


def loaded(folder: Path, *lines: Any) -> list[Conversation]:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return list(lmcache.load(path))


def said(one: Conversation) -> list[str]:
    return [message.content for message in one.messages]


# Counted in the files: lines, conversations, model turns, calls of the simulated user, calls without output.
REAL = {
    "magagent__d075ac3196a7c83a5cf6330ae479ccc7.openai_chat.jsonl": (23, 22, 23, 0, 0),
    "magagent__e58895aeb237c2865519206612cf0c6c.openai_chat.jsonl": (11, 10, 11, 0, 0),
    "miniswe__189f0222310bd8eee310f204e91b9c84.jsonl": (6, 1, 6, 0, 0),
    "miniswe__abe6103153a804525aa167d60cc30912.jsonl": (13, 1, 13, 0, 0),
    "miniswe__dc4b66869afd786bc4b341ef1119ca53.jsonl": (12, 1, 12, 0, 0),
    "taubench__9dc9f8c9407949e5f4429c081a7a90b6.jsonl": (43, 1, 12, 13, 18),
}


@pytest.mark.parametrize("name", REAL)
def test_every_real_line_is_a_turn_or_counted(shared: Path, name: str) -> None:
    path = shared / FOLDER / name
    found = list(lmcache.load(path))
    losses = sum((Counter(one.losses) for one in found), Counter())
    turns = sum(message.origin == "model" for one in found for message in one.messages)
    lines = len(path.read_text().splitlines())
    assert (lines, len(found), turns, losses[lmcache.SIMULATED_USER], losses[lmcache.NO_OUTPUT]) == REAL[name]
    assert lines == turns + losses[lmcache.SIMULATED_USER] + losses[lmcache.NO_OUTPUT]
    assert losses[lmcache.NO_ROLES] == len(found)


def test_a_real_session_out_of_order_comes_out_in_order_with_its_answers(shared: Path) -> None:
    path = shared / FOLDER / "miniswe__dc4b66869afd786bc4b341ef1119ca53.jsonl"
    lines = sorted(map(json.loads, path.read_text().splitlines()), key=lambda row: row["timestamp"])
    (one,) = lmcache.load(path)
    assert [message.content for message in one.messages if message.origin == "model"] == [
        row["output"] for row in lines
    ]
    assert "\n\n".join(message.content for message in one.messages if message.role == "user") == lines[-1]["input"]
    assert one.losses[lmcache.STEPS_BACK] == 3


@pytest.mark.parametrize("name", ["24c817382a29e399b7dac064b923c268", "9028da139d6eb51d381b591ee2b75138"])
def test_real_files_with_tool_calls_only_are_refused_with_the_reason(shared: Path, name: str) -> None:
    with pytest.raises(WorkloadError, match=r"no call with an output of the agent \(.*whose output is empty"):
        list(lmcache.load(shared / FOLDER / f"taubench__{name}.jsonl"))


def test_a_real_empty_file_is_refused(shared: Path) -> None:
    with pytest.raises(WorkloadError, match="the file is empty"):
        list(lmcache.load(shared / FOLDER / "taubench__ea09a0dc475dbe00b56101ef665b8c03.jsonl"))


def test_a_real_folder_gives_every_session_and_counts_the_empty_file(shared: Path) -> None:
    found = list(lmcache.load(shared / FOLDER))
    losses = sum((Counter(one.losses) for one in found), Counter())
    turns = sum(message.origin == "model" for one in found for message in one.messages)
    assert (len(found), turns, losses[lmcache.EMPTY]) == (36, 77, 1)
    assert turns + losses[lmcache.SIMULATED_USER] + losses[lmcache.NO_OUTPUT] == 147


def test_an_answer_that_the_next_input_repeats_is_not_repeated(tmp_path: Path) -> None:
    (one,) = loaded(
        tmp_path,
        line(1, "a", "x"),
        line(2, "a\n\nassistant: x\n\nb", "y"),
        line(3, "a\n\nassistant: x\n\nb\n\nc", "z"),
    )
    assert said(one) == ["a", "x", "b", "y", "c", "z"]


def test_an_input_goes_on_only_where_a_message_ends(tmp_path: Path) -> None:
    assert len(loaded(tmp_path, line(1, "look", "x"), line(2, "looking", "y"))) == 2


def test_repeated_inputs_are_sessions_of_their_own(tmp_path: Path) -> None:
    found = loaded(tmp_path, line(1, "a", "x"), line(2, "a", "y"), line(3, "a\n\nb", "z"))
    assert [said(one) for one in found] == [["a", "x"], ["a", "y", "b", "z"]]
    assert found[0].losses == {lmcache.REPEATED: 1, lmcache.NO_ROLES: 1}
    assert [one.conversation_id for one in found] == ["s", "s/2"]


def test_sessions_of_one_file_are_kept_apart(tmp_path: Path) -> None:
    found = loaded(tmp_path, line(1, "a", "x", "s"), line(2, "a\n\nb", "y", "t"))
    assert [said(one) for one in found] == [["a", "x"], ["a\n\nb", "y"]]


def test_calls_without_output_leave_their_input_to_the_next(tmp_path: Path) -> None:
    (one,) = loaded(tmp_path, line(1, "a", "x"), line(2, "a\n\nb", ""), line(3, "a\n\nb\n\nc", "y"))
    assert said(one) == ["a", "x", "b\n\nc", "y"]
    assert one.losses == {lmcache.NO_OUTPUT: 1, lmcache.NO_ROLES: 1}


@pytest.mark.parametrize(
    "row", [line(1, "a", "x") | {"output": None}, line(1, "a", "x") | {"timestamp": "1"}, {"a": 1}]
)
def test_what_cannot_be_read_is_refused_with_its_place(tmp_path: Path, row: Any) -> None:
    with pytest.raises(WorkloadError, match="line 1: not an LMCache agent call but"):
        loaded(tmp_path, row)


@pytest.mark.parametrize(
    "head", [None, 7, "x", [], {}, {"input": "x", "output": "y"}, line(1, "a", "x") | {"input": 7}]
)
def test_other_heads_are_not_recognised(head: Any) -> None:
    assert lmcache.matches([line(1, "a", "x")])
    assert not lmcache.matches(head)
