"""The bundled conversations are real recordings in small, and the tokenizer beside them is what its script makes."""

import json
import platform
from pathlib import Path

import pytest

from workloads import train_tokenizer
from workloads.conversation import Conversation
from workloads.formats import conversation_json
from workloads.render import Renderer
from workloads.sample_paths import CONVERSATIONS, TOKENIZER
from workloads.session import WorkloadError
from workloads.text_encoder import TextEncoder

RENDERER = Renderer(TOKENIZER)
ENCODER = TextEncoder(TOKENIZER)
SAMPLE = list(conversation_json.load(CONVERSATIONS))

each = pytest.mark.parametrize("recorded", SAMPLE, ids=lambda found: found.conversation_id)


def test_two_repairs_and_two_service_conversations_are_bundled() -> None:
    names = [recorded.conversation_id for recorded in SAMPLE]
    assert names == ["repair-coltable", "repair-cronspec", "service-airline", "service-retail"]


@each
def test_a_session_has_ten_turns_of_each_kind_and_a_size_that_replays_fast(recorded: Conversation) -> None:
    session = RENDERER.render(recorded)
    assert len(session.turns) >= 10
    assert {turn.kind for turn in session.turns} == {"first", "tool", "user"}
    assert 5_000 <= session.longest_context <= 9_000
    assert 500 <= sum(len(turn.output_ids) for turn in session.turns) <= 1_500
    assert all(turn.tool_wait_s is not None for turn in session.turns[1:])


@each
def test_calls_come_with_text_in_parallel_and_alone(recorded: Conversation) -> None:
    calling = [message for message in recorded.messages if message.tool_calls]
    assert any(message.content for message in calling)
    assert any(not message.content for message in calling)
    assert any(len(message.tool_calls) > 1 for message in calling)


@each
def test_every_result_answers_the_call_it_names_and_arguments_are_json(recorded: Conversation) -> None:
    tools = {tool["function"]["name"] for tool in recorded.tools}
    waiting: dict[str | None, str] = {}
    for message in recorded.messages:
        for call in message.tool_calls:
            assert call.name in tools
            assert isinstance(json.loads(call.arguments), dict)
            waiting[call.call_id] = call.name
        if message.role == "tool":
            assert waiting.pop(message.tool_call_id) == message.name
    assert set(waiting.values()) <= {"finish"}


def test_tool_outputs_are_spread_from_20_to_2500_tokens() -> None:
    lengths = [
        len(ENCODER.encode(message.content))
        for recorded in SAMPLE
        for message in recorded.messages
        if message.role == "tool"
    ]
    assert min(lengths) >= 20
    assert max(lengths) <= 2_500
    for low, high in ((20, 50), (50, 100), (100, 250), (250, 500), (500, 1_000), (1_500, 2_500)):
        assert any(low <= length < high for length in lengths)


def test_the_tokenizer_is_what_its_script_makes_from_this_text() -> None:
    config = json.loads((TOKENIZER / "tokenizer_config.json").read_text())
    texts = train_tokenizer.corpus()
    if train_tokenizer.digest(texts) != config["trained_on_sha256"]:
        pytest.skip(
            f"trained on the sources of Python {config['trained_with_python']}; this is"
            f" {platform.python_version()}, or the conversations were changed since"
        )
    made = json.loads(train_tokenizer.train(texts).to_str())
    assert made == json.loads((TOKENIZER / "tokenizer.json").read_text())


def test_training_twice_gives_the_same_tokenizer() -> None:
    texts = [message.content for recorded in SAMPLE for message in recorded.messages]
    first, second = (train_tokenizer.train(texts, vocab_size=600).to_str() for _ in range(2))
    assert first == second


def test_the_tokenizer_is_a_plain_byte_level_bpe_of_4096_ids() -> None:
    tokenizer = json.loads((TOKENIZER / "tokenizer.json").read_text())
    assert tokenizer["normalizer"] is None
    assert tokenizer["pre_tokenizer"] == {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    assert tokenizer["model"]["type"] == "BPE"
    assert sorted(tokenizer["model"]["vocab"].values()) == list(range(4096))
    assert len(tokenizer["model"]["merges"]) == 4096 - 256 - len(train_tokenizer.SPECIAL_TOKENS)
    assert [token["content"] for token in tokenizer["added_tokens"]] == list(train_tokenizer.SPECIAL_TOKENS)


def saved(folder: Path, **changes: object) -> Path:
    path = folder / "one.json"
    fields = {"conversation_id": "c", "source": "s", "messages": [{"role": "user"}, {"role": "assistant"}]}
    path.write_text(json.dumps(fields | changes))
    return path


def test_a_conversation_needs_little_to_be_read(tmp_path: Path) -> None:
    (recorded,) = conversation_json.load(saved(tmp_path))
    assert [(message.role, message.origin) for message in recorded.messages] == [
        ("user", "given"),
        ("assistant", "model"),
    ]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"messages": []}, "messages must be a list of at least one message"),
        ({"messages": [{"role": "ai"}]}, r"messages\[0\].role: unknown role 'ai'; known are system, user"),
        ({"messages": [{"role": "user"}]}, "no message has origin model"),
        ({"messages": [{"role": "user", "origin": "model"}]}, r"messages\[0\].origin: only an assistant message"),
        ({"messages": [{"role": "assistant", "origin": "me"}]}, r"messages\[0\].origin: unknown origin 'me'"),
        ({"messages": [{"role": "user", "text": "x"}]}, r"messages\[0\]: unknown field 'text'"),
        ({"messages": [{"role": "user", "content": 3}]}, r"messages\[0\].content: must be text, found int"),
        ({"messages": [{"role": "user", "time_s": "3"}]}, r"messages\[0\].time_s: must be a number of seconds"),
        ({"messages": [{"role": "user", "tool_calls": [{}]}]}, r"messages\[0\].tool_calls: only an assistant"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"name": "add"}]}]},
            r"messages\[0\].tool_calls\[0\]: the field arguments is missing",
        ),
        ({"messages": ["hello"]}, r"messages\[0\]: expected a JSON object, found str"),
        ({"tools": [3]}, r"tools\[0\]: a tool schema is a JSON object"),
        ({"conversation_id": None}, "the field conversation_id is missing"),
        ({"model": "x"}, "unknown field 'model'"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    with pytest.raises(WorkloadError, match=rf"one\.json.*{says}"):
        list(conversation_json.load(saved(tmp_path, **changes)))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b'{"source": "s",\n"messages": [}', r"broken JSON at line 2 .*mend that line"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"[]", "expected a JSON object, found list"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "one.json"
    path.write_bytes(content)
    with pytest.raises(WorkloadError, match=rf"one\.json: {says}"):
        list(conversation_json.load(path))


def test_a_missing_path_and_an_empty_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"none: no such file or folder; check workload\.path"):
        list(conversation_json.load(tmp_path / "none"))
    with pytest.raises(WorkloadError, match=r"no \*\.json file in this folder"):
        list(conversation_json.load(tmp_path))
