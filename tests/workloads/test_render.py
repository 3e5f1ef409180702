"""Prompts nest token by token, nothing recorded is lost or taken for markup, and rewriting templates are refused."""

import dataclasses
import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from workloads.chat_template import ChatTemplate
from workloads.conversation import Conversation, Message, ToolCall
from workloads.formats import conversation_json
from workloads.message_form import MessageForm, as_dict
from workloads.render import Renderer
from workloads.sample_paths import CONVERSATIONS, TOKENIZER
from workloads.session import Session, WorkloadError
from workloads.shape import shape
from workloads.template_probe import message_form
from workloads.text_encoder import TextEncoder
from workloads.train_tokenizer import SPECIAL_TOKENS

RENDERER = Renderer(TOKENIZER)
TEMPLATE = ChatTemplate(TOKENIZER)
ENCODER = TextEncoder(TOKENIZER)
END = "<|end|>"


def user(content: str = "hello", time_s: float | None = None) -> Message:
    return Message(role="user", origin="given", content=content, time_s=time_s)


def tool(content: str = "42", time_s: float | None = None) -> Message:
    return Message(role="tool", origin="given", content=content, tool_call_id="c1", name="add", time_s=time_s)


def model(content: str = "fine", time_s: float | None = None, *calls: ToolCall) -> Message:
    return Message(role="assistant", origin="model", content=content, tool_calls=calls, time_s=time_s)


GREETING = Message(role="assistant", origin="given", content="Good morning.")
CALL = ToolCall(name="add", arguments='{"a":1,  "b": 41}', call_id="c1")


def conversation(*messages: Message, tools: Sequence[dict[str, object]] = ()) -> Conversation:
    return Conversation(conversation_id="c", source="test", messages=messages, tools=tuple(tools))


def render(*messages: Message) -> Session:
    return RENDERER.render(conversation(*messages))


def prompt_text(messages: Sequence[Message], tools: Sequence[object] = ()) -> str:
    rows = [as_dict(message, MessageForm()) for message in messages]
    return TEMPLATE.render(rows, tools, prompt=True)  # type: ignore[arg-type]


# Text as recordings hold it and as they don't: special tokens, halves of them, noncharacters, any script.
texts = st.lists(
    st.sampled_from(SPECIAL_TOKENS)
    | st.sampled_from(("<|", "|>", "<", "<|en", "d|>", "\n\n", " ", "\ufdd0", "\ufdd1", "</think>", "{{ x }}"))
    | st.text(max_size=8),
    max_size=4,
).map("".join)
calls = st.builds(ToolCall, name=texts, arguments=texts, call_id=st.none() | texts)
givens = st.builds(
    Message,
    role=st.sampled_from(("system", "user", "tool", "assistant")),
    origin=st.just("given"),
    content=texts,
    tool_call_id=st.none() | texts,
    name=st.none() | texts,
)
answers = st.builds(
    Message,
    role=st.just("assistant"),
    origin=st.just("model"),
    content=texts,
    reasoning=st.none() | texts,
    tool_calls=st.lists(calls, max_size=2).map(tuple),
)
conversations = st.builds(
    Conversation,
    conversation_id=st.just("c"),
    source=st.just("test"),
    messages=st.lists(givens | answers, min_size=1, max_size=8).map(tuple),
    tools=st.lists(st.dictionaries(texts, texts | st.lists(texts, max_size=2), max_size=2), max_size=2).map(tuple),
).filter(lambda found: any(message.origin == "model" for message in found.messages))


@settings(deadline=None, max_examples=60)
@given(recorded=conversations)
def test_each_prompt_is_what_the_template_writes_for_it(recorded: Conversation) -> None:
    session = RENDERER.render(recorded)
    answered = [index for index, message in enumerate(recorded.messages) if message.origin == "model"]
    for index, prompt, turn in zip(answered, session.prompts(), session.turns, strict=True):
        before = prompt_text(recorded.messages[:index], recorded.tools)
        after = TEMPLATE.render(
            [as_dict(message, MessageForm()) for message in recorded.messages[: index + 1]], recorded.tools
        )
        assert RENDERER.decode(prompt) == before
        assert RENDERER.decode(turn.output_ids) == after.removeprefix(before)
        assert turn.output_ids[-1] == SPECIAL_TOKENS.index(END)


@settings(deadline=None, max_examples=60)
@given(recorded=conversations)
def test_special_tokens_come_from_the_template_only(recorded: Conversation) -> None:
    ids = [one for turn in RENDERER.render(recorded).turns for one in turn.delta_ids + turn.output_ids]
    last = max(index for index, message in enumerate(recorded.messages) if message.origin == "model")
    replayed = recorded.messages[: last + 1]
    count = {name: ids.count(number) for number, name in enumerate(SPECIAL_TOKENS)}
    own_system = bool(recorded.tools) and replayed[0].role != "system"
    assert count[END] == len(replayed) + own_system
    assert count["<|user|>"] == sum(message.role == "user" for message in replayed)
    assert count["<|assistant|>"] == sum(message.role == "assistant" for message in replayed)
    assert count["<|call|>"] == sum(len(message.tool_calls) for message in replayed if message.role == "assistant")
    assert count["<|pad|>"] == 0


@settings(deadline=None, max_examples=40)
@given(recorded=conversations)
def test_one_rendering_gives_what_rendering_each_prompt_gives(recorded: Conversation) -> None:
    rows = RENDERER._rows(recorded)
    assert RENDERER._is_cut_at_once(shape(recorded))
    at_once = RENDERER._writer.at_once(rows)
    assert at_once is not None
    assert at_once == list(RENDERER._writer.one_by_one(rows))


@given(text=st.text(max_size=60))
def test_any_text_survives_the_tokenizer(text: str) -> None:
    assert RENDERER.decode(ENCODER.encode(text)) == text


@given(
    text=st.lists(
        st.sampled_from(("<left>", "<right>", "<both>", "<|end|>", " ", "\n", "\t ", "a", "b c")), max_size=9
    ).map("".join)
)
def test_special_tokens_that_swallow_white_space_do_so_as_in_hugging_face(
    text: str, swallowing: tuple[Tokenizer, TextEncoder]
) -> None:
    theirs, ours = swallowing
    assert list(ours.encode(text)) == theirs.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def swallowing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, TextEncoder]:
    folder = tmp_path_factory.mktemp("swallowing")
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    tokenizer.add_special_tokens(
        [
            AddedToken("<left>", lstrip=True, normalized=False),
            AddedToken("<right>", rstrip=True, normalized=False),
            AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
        ]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer, TextEncoder(folder)


@pytest.mark.parametrize("name", ["repair_coltable", "repair_cronspec", "service_airline", "service_retail"])
def test_no_merge_crosses_a_seam(name: str) -> None:
    (recorded,) = conversation_json.load(CONVERSATIONS / f"{name}.json")
    rows = [as_dict(message, MessageForm()) for message in recorded.messages]
    while recorded.messages[len(rows) - 1].origin != "model":
        rows.pop()
    pieces = [turn.delta_ids + turn.output_ids for turn in RENDERER.render(recorded).turns]
    assert tuple(itertools.chain(*pieces)) == ENCODER.encode(TEMPLATE.render(rows, recorded.tools))


def test_a_quoted_special_token_is_text() -> None:
    plain, quoting = render(user("an  token"), model()), render(user(f"an {END} token"), model(f"{END}{END}"))
    assert quoting.turns[0].delta_ids.count(SPECIAL_TOKENS.index(END)) == 1
    assert plain.turns[0].delta_ids.count(SPECIAL_TOKENS.index(END)) == 1
    assert quoting.turns[0].output_ids.count(SPECIAL_TOKENS.index(END)) == 1
    assert RENDERER.decode(quoting.turns[0].output_ids) == END * 3


def test_text_calls_and_raw_arguments_are_in_the_output() -> None:
    (turn,) = render(user(), model("Adding.\n", None, CALL, dataclasses.replace(CALL, call_id="c2"))).turns
    assert RENDERER.decode(turn.output_ids) == (
        'Adding.\n<|call|>add<|id|>c1<|arguments|>{"a":1,  "b": 41}'
        '<|call|>add<|id|>c2<|arguments|>{"a":1,  "b": 41}<|end|>'
    )


def test_tools_reasoning_and_results_are_carried() -> None:
    schema = {"type": "function", "function": {"name": "add", "description": "größer <b>"}}
    thinking = dataclasses.replace(model("", None, CALL), reasoning="sum them")
    session = RENDERER.render(conversation(user(), thinking, tool("42"), model("42."), tools=[schema]))
    assert RENDERER.decode(session.turns[0].delta_ids) == (
        "<|system|><|tools|>" + json.dumps(schema, ensure_ascii=False) + "<|end|><|user|>hello<|end|><|assistant|>"
    )
    assert RENDERER.decode(session.turns[0].output_ids).startswith("<|think|>sum them<|answer|><|call|>add")
    assert RENDERER.decode(session.turns[1].delta_ids) == "<|tool|>add<|id|>c1<|result|>42<|end|><|assistant|>"


def test_a_turn_is_first_tool_or_user() -> None:
    session = render(user(), model("", None, CALL), tool(), model(), user(), model(), model(), user())
    assert [turn.kind for turn in session.turns] == ["first", "tool", "user", "user"]


def test_a_given_greeting_stands_in_the_prompt() -> None:
    session = render(GREETING, user(), model())
    assert [turn.kind for turn in session.turns] == ["first"]
    assert RENDERER.decode(session.turns[0].delta_ids) == (
        "<|assistant|>Good morning.<|end|><|user|>hello<|end|><|assistant|>"
    )


def test_what_follows_the_last_answer_is_left_out() -> None:
    assert render(user(), model(), tool(), user("bye")) == render(user(), model())


def test_the_wait_is_from_the_answer_to_the_message_that_ends_the_prompt() -> None:
    session = render(
        user(time_s=5.0),
        model(time_s=7.0),
        tool(time_s=8.0),
        tool(time_s=9.5),
        model(time_s=10.0),
        user(time_s=None),
        model(time_s=20.0),
        user(time_s=19.0),  # the clock stepped back
        model(time_s=None),
        user(time_s=30.0),
        model(time_s=31.0),
        model(time_s=33.0),  # nothing says when this was asked for
    )
    assert [turn.tool_wait_s for turn in session.turns] == [None, 2.5, None, None, None, None]


def test_a_conversation_without_a_model_turn_is_refused() -> None:
    with pytest.raises(WorkloadError, match="c: no message has origin model"):
        render(GREETING, user())


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(WorkloadError, match="c: message 1 has the unknown role 'ai'; known are system, user"):
        render(user(), Message(role="ai", origin="model"))  # type: ignore[arg-type]


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"c: .*'.* smile ' is followed by half a surrogate pair"):
        render(user("a broken smile \ud83d"), model())


def test_a_folder_without_a_tokenizer_or_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"tokenizer\.json: no such file"):
        Renderer(tmp_path)
    shutil.copy(TOKENIZER / "tokenizer.json", tmp_path)
    with pytest.raises(WorkloadError, match="no chat template"):
        Renderer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(WorkloadError, match="the chat template does not parse"):
        Renderer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{\n,")
    with pytest.raises(WorkloadError, match=r"tokenizer\.json: broken JSON at line 2"):
        Renderer(tmp_path)


def folder_with(tmp_path: Path, template: str, *special: str) -> Path:
    """A tokenizer folder with another chat template and that template's special tokens."""
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": template})
    )
    return tmp_path


def test_a_template_that_drops_earlier_reasoning_is_refused(tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{{ '<|' + m.role + '|>' }}{% generation %}"
        "{% if loop.last and m.reasoning_content %}{{ m.reasoning_content }}{% endif %}"
        "{{ m.content }}<|end|>{% endgeneration %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    renderer = Renderer(folder_with(tmp_path, template))
    thinking = dataclasses.replace(model("fine"), reasoning="hm")
    with pytest.raises(WorkloadError, match=r"rewrites history: with turn 1's prompt only 4 of the [0-9]+ tokens"):
        renderer.render(conversation(user("a"), thinking, user("b"), model()))
    assert renderer.render(conversation(user("a"), model(), user("b"), model())).turns


def test_a_template_that_refuses_a_message_is_named_with_its_reason(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ raise_exception('roles must alternate') }}{% endfor %}"
    with pytest.raises(WorkloadError, match=r"c: the chat template in .* refuses .*\(roles must alternate\)"):
        Renderer(folder_with(tmp_path, template)).render(conversation(user(), model()))


def test_a_template_that_does_not_close_answers_is_refused(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    with pytest.raises(WorkloadError, match="does not close turn 0's answer with a special token"):
        Renderer(folder_with(tmp_path, template)).render(conversation(user(), model()))


IM = ("<|im_start|>", "<|im_end|>")
MISTRAL = ("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[SYSTEM_PROMPT]")


@pytest.mark.parametrize(
    ("name", "special"),
    [
        ("Qwen-Qwen2.5-7B-Instruct", IM),
        ("Qwen3-Coder", IM),
        ("moonshotai-Kimi-K2", ("<|im_end|>", "<|im_middle|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>")),
    ],
)
def test_a_real_stable_template_gives_its_own_prompts(
    tmp_path: Path, shared: Path, name: str, special: tuple[str, ...]
) -> None:
    folder = folder_with(tmp_path, (shared / "data/chat_templates" / f"{name}.jinja").read_text(), *special)
    renderer, template = Renderer(folder), ChatTemplate(folder)
    (recorded,) = conversation_json.load(CONVERSATIONS / "service_airline.json")
    greeting = next(message for message in recorded.messages if message.role == "assistant")
    recorded = dataclasses.replace(recorded, messages=tuple(m for m in recorded.messages if m is not greeting))
    session = renderer.render(recorded)
    answered = [index for index, message in enumerate(recorded.messages) if message.origin == "model"]
    form = message_form(template)
    for index, prompt, turn in zip(answered, session.prompts(), session.turns, strict=True):
        rows = [as_dict(message, form) for message in recorded.messages[:index]]
        assert renderer.decode(prompt) == template.render(rows, recorded.tools, prompt=True)
        assert renderer.decode(turn.output_ids).endswith("<|im_end|>")


def test_a_real_template_without_a_closing_token_ends_turns_with_the_next_role(tmp_path: Path, shared: Path) -> None:
    file = shared / "data/chat_templates/GLM-4.6.jinja"
    roles = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
    renderer = Renderer(folder_with(tmp_path, "unused", *roles), chat_template=file)
    (recorded,) = conversation_json.load(CONVERSATIONS / "service_airline.json")
    session = renderer.render(recorded)
    template = ChatTemplate(tmp_path, file)
    form = message_form(template)
    answered = [index for index, message in enumerate(recorded.messages) if message.origin == "model"]
    for index, prompt, turn in zip(answered, session.prompts(), session.turns, strict=True):
        rows = [as_dict(message, form) for message in recorded.messages[:index]]
        assert renderer.decode(prompt) == template.render(rows, recorded.tools, prompt=True)
        asks = bool(recorded.messages[index].tool_calls)
        assert renderer.decode(turn.output_ids[-1:]) == ("<|observation|>" if asks else "<|user|>")


def test_role_markers_that_a_tokenizer_does_not_list_as_special_are_text_where_quoted(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken("<｜User｜>", special=False, normalized=False)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encoder = TextEncoder(tmp_path)
    marker = tokenizer.token_to_id("<｜User｜>")
    assert encoder.encode("<｜User｜>") == (marker,)
    assert marker not in encoder.encode(encoder.guard("a <｜User｜> b", "\ufdd0"), "\ufdd0")


def test_another_chat_template_makes_another_hash(tmp_path: Path) -> None:
    other = tmp_path / "other.jinja"
    other.write_text((TOKENIZER / "chat_template.jinja").read_text())
    assert Renderer(TOKENIZER, chat_template=other).tokenizer_hash != RENDERER.tokenizer_hash
    with pytest.raises(WorkloadError, match=r"no\.jinja: no such file; correct workload\.chat_template"):
        Renderer(TOKENIZER, chat_template=tmp_path / "no.jinja")


@pytest.mark.parametrize(
    ("name", "special"), [("Qwen-Qwen3-0.6B", IM), ("Mistral-Small-3.2-24B-Instruct-2506", MISTRAL)]
)
def test_a_real_template_that_rewrites_history_is_refused(
    tmp_path: Path, shared: Path, name: str, special: tuple[str, ...]
) -> None:
    folder = folder_with(tmp_path, (shared / "data/chat_templates" / f"{name}.jinja").read_text(), *special)
    schema = {"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}
    recorded = conversation(user("a"), model(), user("b"), model(), tools=[schema])
    with pytest.raises(
        WorkloadError, match=r"c: the chat template in .* rewrites history: with turn 1's prompt only"
    ):
        Renderer(folder).render(recorded)


def test_hugging_face_reads_the_folder_alike() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers comes with the extra `ostinato`")
    theirs = transformers.AutoTokenizer.from_pretrained(TOKENIZER)
    assert (len(theirs), theirs.eos_token, theirs.pad_token, theirs.bos_token) == (4096, END, "<|pad|>", None)
    (recorded,) = conversation_json.load(CONVERSATIONS / "repair_coltable.json")
    session = RENDERER.render(recorded)
    rows = [as_dict(message, MessageForm()) for message in recorded.messages]
    first = next(index for index, message in enumerate(recorded.messages) if message.origin == "model")
    prompt = theirs.apply_chat_template(
        rows[:first], tools=list(recorded.tools), add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert tuple(prompt) == session.turns[0].delta_ids
    whole = theirs.apply_chat_template(
        rows, tools=list(recorded.tools), return_dict=True, return_assistant_tokens_mask=True
    )
    marked = [one for one, ours in zip(whole["input_ids"], whole["assistant_masks"], strict=True) if ours]
    assert marked == [one for turn in session.turns for one in turn.output_ids]
