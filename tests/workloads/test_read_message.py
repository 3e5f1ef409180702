from typing import Any

import pytest

from workloads.formats.openai_message import read
from workloads.formats.read_message import PROMPTS_HELD, PromptReader
from workloads.session import WorkloadError


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_of_a_prompt_that_begins_like_an_earlier_one_only_what_is_new_is_read() -> None:
    reader = PromptReader(read)
    first = reader.prompt([user("a"), user("b"), user("c")], "one")
    second = reader.prompt([user("a"), user("b"), user("d"), user("c")], "two")
    assert [one is other for one, other in zip(first, second, strict=False)] == [True, True, False]
    assert [one.message.content for one in second] == ["a", "b", "d", "c"]


def test_many_sessions_at_once_are_read_right_though_only_some_are_held() -> None:
    reader = PromptReader(read)
    for text in ("x", "y"):
        for session in range(PROMPTS_HELD + 3):
            found = reader.prompt([user(str(session)), user("a"), user(text)], "one")
            assert [one.message.content for one in found] == [str(session), "a", text]


def test_what_cannot_be_read_is_named_by_its_place_in_the_whole_prompt() -> None:
    reader = PromptReader(read)
    reader.prompt([user("a"), user("b")], "one")
    with pytest.raises(WorkloadError, match="two, message 3: unknown role 'ai'"):
        reader.prompt([user("a"), user("b"), {"role": "ai"}], "two")


def test_keys_are_equal_for_an_answer_sent_back_stripped_and_rewritten_and_for_nothing_else() -> None:
    def key(content: str, arguments: str = '{"b":2,"a":1}', role: str = "assistant") -> bytes:
        call = {"id": "c", "function": {"name": "x", "arguments": arguments}}
        return read({"role": role, "content": content, "tool_calls": [call]}, "one").key

    assert key("a\n") == key("a", '{"a": 1, "b": 2}')
    assert len({key("a"), key("b"), key("a", "{}"), key("a", "no json"), key("a", role="user")}) == 5
    assert key("a", role="user") != key("a\n", role="user")
