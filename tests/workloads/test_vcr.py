import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from workloads.formats import calls, completion, vcr
from workloads.formats.chat import NULL_CONTENT
from workloads.formats.openhands import NO_TOOLS
from workloads.session import WorkloadError

USER = {"role": "user", "content": "hi"}
CHAT = "https://api.example.com/v1/chat/completions"
YES = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}]}


def interaction(answer: Any, *, uri: str = CHAT, code: int = 200, **request: Any) -> dict[str, Any]:
    sent = {"body": json.dumps({"messages": [USER]}, indent=1), "uri": uri, "method": "POST"}
    return {"request": sent | request, "response": {"body": answer, "status": {"code": code}}}


def written(folder: Path, *interactions: Any, name: str = "one.yaml") -> Path:
    path = folder / name
    # JSON is YAML.
    path.write_text(json.dumps({"interactions": list(interactions), "version": 1}))
    return path


# Counted in the files: conversations, model turns, what was lost.
REAL: dict[str, tuple[int, int, dict[str, int]]] = {
    "multiple_choices": (1, 1, {calls.OTHER_CHOICES: 1}),
    "multiple_choices_streaming": (1, 1, {calls.OTHER_CHOICES: 1}),
    "multiple_tools_streaming_with_content": (1, 1, {NULL_CONTENT: 1}),
    "streaming_not_complete": (1, 1, {}),
    # The second request leaves the tools out, so its prompt is not the first one's.
    "tool_calls_with_content": (2, 2, {NULL_CONTENT: 2, NO_TOOLS: 1}),
}


@pytest.mark.parametrize("name", REAL)
def test_real_cassettes_give_their_answers(shared: Path, name: str) -> None:
    found = list(vcr.load(shared / f"data/openai_vcr/test_chat_completion_{name}.yaml"))
    turns = sum(message.origin == "model" for one in found for message in one.messages)
    losses: dict[str, int] = {}
    for one in found:
        for reason, count in one.losses.items():
            losses[reason] = losses.get(reason, 0) + count
    assert (len(found), turns, losses) == REAL[name]


def test_real_interleaved_choices_are_told_apart(shared: Path) -> None:
    (one,) = vcr.load(shared / "data/openai_vcr/test_chat_completion_multiple_choices_streaming.yaml")
    assert one.messages[-1].content.startswith("I'm unable to provide real-time weather updates.")


def test_real_argument_fragments_are_joined(shared: Path) -> None:
    (one,) = vcr.load(shared / "data/openai_vcr/test_chat_completion_multiple_tools_streaming_with_content.yaml")
    assert [each.arguments for each in one.messages[-1].tool_calls] == [
        '{"location": "Seattle, WA"}',
        '{"location": "San Francisco, CA"}',
    ]
    assert one.tools[0]["function"]["name"] == "get_current_weather"


def test_a_real_cassette_that_was_refused_with_404_is_refused(shared: Path) -> None:
    with pytest.raises(WorkloadError, match=r"holds no answered chat completion \(1 calls that the server refused"):
        list(vcr.load(shared / "data/openai_vcr/test_chat_completion_404.yaml"))


def test_a_real_stream_that_is_cut_off_has_no_answer(shared: Path, tmp_path: Path) -> None:
    text = (shared / "data/openai_vcr/test_chat_completion_streaming_not_complete.yaml").read_text()
    path = tmp_path / "cut.yaml"
    path.write_text(text[: text.index('{"content":" test"}')] + "\n    headers: {}\n    status: {code: 200}\n")
    with pytest.raises(WorkloadError, match="1 answers whose stream breaks off before its end"):
        list(vcr.load(path))


def test_a_real_folder_gives_what_its_cassettes_hold_and_counts_the_refused_one(shared: Path) -> None:
    found = list(vcr.load(shared / "data/openai_vcr"))
    assert len(found) == 6
    assert sum(one.losses.get(completion.FAILED, 0) for one in found) == 1


def test_requests_of_other_endpoints_and_answers_of_other_kinds_are_counted(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        interaction({"string": json.dumps(YES)}),
        interaction({"string": "{}"}, uri="https://api.example.com/v1/embeddings"),
        interaction({"string": json.dumps(YES)}, body=None),
        interaction({"string": json.dumps(YES)}, code=500),
        interaction({"string": "<html>"}),
    )
    (one,) = vcr.load(path)
    assert one.losses == {vcr.OTHER_REQUEST: 2, completion.FAILED: 1, completion.NO_COMPLETION: 1}


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(YES),
        {"string": json.dumps(YES)},
        {"base64_string": base64.b64encode(json.dumps(YES).encode()).decode()},
        {"base64_string": base64.b64encode(gzip.compress(json.dumps(YES).encode())).decode()},
    ],
)
def test_a_body_may_be_plain_encoded_or_compressed(tmp_path: Path, body: Any) -> None:
    (one,) = vcr.load(written(tmp_path, interaction(body)))
    assert one.messages[-1].content == "yes"


def test_parsed_bodies_are_read(tmp_path: Path) -> None:
    recorded = {
        "request": {"uri": CHAT, "parsed_body": {"messages": [USER]}},
        "response": {"parsed_body": YES, "status": {"code": 200}},
    }
    (one,) = vcr.load(written(tmp_path, recorded))
    assert [message.content for message in one.messages] == ["hi", "yes"]


def test_a_compressed_cassette_is_read(tmp_path: Path) -> None:
    plain = written(tmp_path, interaction(json.dumps(YES)))
    path = tmp_path / "one.yaml.gz"
    path.write_bytes(gzip.compress(plain.read_bytes()))
    assert len(list(vcr.load(path))) == 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "the file is empty"),
        ("interactions: [", r"broken YAML at line 2 .*record it again"),
        ("a: 1", "not a VCR cassette but an object with the keys a"),
        ("interactions: [{}]", "interaction 1: has no request and response; delete it"),
        ("!!python/object:os.system {}", "broken YAML"),
        ("interactions: []", "holds no answered chat completion"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(content)
    with pytest.raises(WorkloadError, match=expected) as caught:
        list(vcr.load(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_files_and_folders_without_cassettes_are_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="nowhere: no such file or folder"):
        list(vcr.load(tmp_path / "nowhere"))
    with pytest.raises(WorkloadError, match=r"holds no \.yaml or \.yml file"):
        list(vcr.load(tmp_path))


def test_cassettes_are_recognised_by_their_first_lines(shared: Path) -> None:
    for file in (shared / "data/openai_vcr").iterdir():
        assert vcr.matches(file.read_text()[:1000])


@pytest.mark.parametrize("head", [None, 7, [], {}, "", "data: x", "# interactions:\na: 1", ("archive", "a.json")])
def test_anything_else_is_not(head: Any) -> None:
    assert not vcr.matches(head)
