import json
from pathlib import Path
from typing import Any

import pytest

from workloads.conversation import Conversation
from workloads.formats import agentinstruct
from workloads.formats.agentinstruct import EXAMPLE, NEW_PROBLEM, NO_LOSS_FLAG
from workloads.session import WorkloadError


def loaded(folder: Path, *turns: Any) -> Conversation:
    path = folder / "os.json"
    path.write_text(json.dumps([{"conversations": list(turns), "id": "os_0"}]))
    (conversation,) = agentinstruct.load(path)
    return conversation


def human(text: str) -> dict[str, Any]:
    return {"from": "human", "loss": None, "value": text}


def gpt(text: str, loss: bool) -> dict[str, Any]:
    return {"from": "gpt", "loss": loss, "value": text}


# Counted in the files: model turns, given messages.
REAL = {
    "db_hf_shape_DERIVED_3.jsonl": (6, 6),
    "db_role_content_3.json": (6, 6),
    "os_hf_shape_DERIVED_3.jsonl": (19, 19),
    "os_role_content_3.json": (10, 28),
}


@pytest.mark.parametrize("name", REAL)
def test_real_rows_give_turns_and_given_messages(shared: Path, name: str) -> None:
    conversations = list(agentinstruct.load(shared / "data/agentinstruct" / name))
    origins = [message.origin for one in conversations for message in one.messages]
    assert (len(conversations), origins.count("model"), origins.count("given")) == (3, *REAL[name])


def test_real_rows_without_flags_replay_the_second_problem_only_and_say_so(shared: Path) -> None:
    for one in agentinstruct.load(shared / "data/agentinstruct/os_role_content_3.json"):
        origins = [message.origin for message in one.messages]
        start = next(number for number, message in enumerate(one.messages) if message.content.startswith(NEW_PROBLEM))
        assert one.losses == {EXAMPLE: origins[:start].count("given") // 2, NO_LOSS_FLAG: 1}
        assert "model" not in origins[:start]


def test_answers_that_carry_no_loss_are_given(tmp_path: Path) -> None:
    one = loaded(tmp_path, human("rules"), gpt("Ok.", False), human("go"), gpt("Act: bash", True))
    assert [message.origin for message in one.messages] == ["given", "given", "given", "model"]
    assert one.losses == {EXAMPLE: 1}


def test_flags_win_over_the_words_that_start_a_new_problem(tmp_path: Path) -> None:
    one = loaded(tmp_path, human("a"), gpt("b", True), human(NEW_PROBLEM), gpt("c", True))
    assert [message.origin for message in one.messages] == ["given", "model", "given", "model"]
    assert one.losses == {}


def test_escape_sequences_and_line_ends_stay(tmp_path: Path) -> None:
    text = "\x1b]0;root@os: /\x07root@os:/# ls\r\n中文"
    assert loaded(tmp_path, human(text), gpt("x", True)).messages[0].content == text


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (7, "row 1, turn 1: expected a turn, found a number"),
        ({"from": "alien", "value": "x"}, "turn 1: from 'alien' is unknown; known are human"),
        ({"from": "gpt", "value": "x", "loss": "yes"}, "turn 1: loss must be true, false or null"),
        ({"from": "gpt", "value": 7, "loss": True}, "turn 1: content must be text"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(tmp_path: Path, turn: Any, expected: str) -> None:
    with pytest.raises(WorkloadError, match=expected):
        loaded(tmp_path, turn)


def test_rows_are_recognised(shared: Path) -> None:
    for name in REAL:
        text = (shared / "data/agentinstruct" / name).read_text()
        assert agentinstruct.matches(json.loads(text if name.endswith(".json") else text.splitlines()[0]))


@pytest.mark.parametrize("head", [None, "x", [], {}, {"conversations": []}, {"conversations": [7]}, {"messages": []}])
def test_anything_else_is_not(head: Any) -> None:
    assert not agentinstruct.matches(head)
