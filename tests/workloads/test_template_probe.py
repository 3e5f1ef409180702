"""What a template leaves out is found with a marker in each field, refused with the list, counted when allowed."""

import json
import shutil
from pathlib import Path

import pytest

from workloads.chat_template import ChatTemplate
from workloads.conversation import Conversation, Message, ToolCall
from workloads.message_form import MessageForm
from workloads.render import Renderer
from workloads.sample_paths import TOKENIZER
from workloads.session import WorkloadError
from workloads.template_probe import EARLIER_REASONING, losses, message_form, probe

HEAD = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ '<|' + m.role + '|>' }}"
TAIL = "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
THOUGHT = "{% if m.reasoning_content %}{{ m.reasoning_content }}<|answer|>{% endif %}"
CALLS = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments }}{% endfor %}"
WHOLE = HEAD + THOUGHT + "{{ m.content }}" + CALLS + TAIL
DROPPING = {
    "tool schemas": WHOLE.replace(" in tools or []", " in []"),
    "system text": WHOLE.replace("{{ m.content }}", "{% if m.role != 'system' %}{{ m.content }}{% endif %}"),
    "tool calls": WHOLE.replace("m.tool_calls or []", "(m.tool_calls or [] if m.content else [])"),
    "tool calls beside text": WHOLE.replace("m.tool_calls or []", "(m.tool_calls or [] if not m.content else [])"),
    "text beside tool calls": WHOLE.replace("{{ m.content }}", "{% if not m.tool_calls %}{{ m.content }}{% endif %}"),
    "second call of a turn": WHOLE.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]"),
    "tool results": WHOLE.replace("{{ m.content }}", "{% if m.role != 'tool' %}{{ m.content }}{% endif %}"),
    "reasoning": WHOLE.replace(THOUGHT, ""),
}
CALL = ToolCall(name="add", arguments='{"a":1}', call_id="c1")
TOOL = {"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}


def given(role: str, content: str = "x") -> Message:
    return Message(role=role, origin="given", content=content, tool_call_id="c1" if role == "tool" else None)  # type: ignore[arg-type]


def answer(content: str = "", *calls: ToolCall, reasoning: str | None = None) -> Message:
    return Message(role="assistant", origin="model", content=content, tool_calls=calls, reasoning=reasoning)


EVERYTHING = Conversation(
    conversation_id="c",
    source="test",
    tools=(TOOL,),
    messages=(
        given("system"),
        given("user"),
        answer("", CALL),
        given("tool"),
        answer("so", CALL),
        given("tool"),
        answer("", CALL, CALL),
        given("tool"),
        given("tool"),
        answer("done", reasoning="hm"),
    ),
)
USED = {
    "tool schemas": 1,
    "system text": 1,
    "tool calls": 2,
    "tool calls beside text": 1,
    "text beside tool calls": 1,
    "second call of a turn": 1,
    "tool results": 4,
    "reasoning": 1,
}


def template_of(folder: Path, text: str) -> ChatTemplate:
    (folder / "chat_template.jinja").write_text(text)
    return ChatTemplate(folder)


def folder_of(folder: Path, text: str) -> Path:
    shutil.copy(TOKENIZER / "tokenizer.json", folder)
    (folder / "chat_template.jinja").write_text(text)
    return folder


def dropped(template: ChatTemplate) -> set[str]:
    return {field for field, outcome in probe(template, message_form(template)).items() if outcome == "dropped"}


def test_a_template_that_keeps_everything_is_found_to() -> None:
    assert dropped(ChatTemplate(TOKENIZER)) == set()
    assert Renderer(TOKENIZER).rendered(EVERYTHING).losses == {}


@pytest.mark.parametrize("field", DROPPING)
def test_what_a_template_drops_is_found(tmp_path: Path, field: str) -> None:
    found = dropped(template_of(tmp_path, DROPPING[field])) - {EARLIER_REASONING}
    assert found >= {field}
    assert found <= {field, "second call of a turn"}  # it is a call, too


@pytest.mark.parametrize("field", DROPPING)
def test_a_recording_that_would_lose_something_is_refused_or_counted(tmp_path: Path, field: str) -> None:
    folder = folder_of(tmp_path, DROPPING[field])
    with pytest.raises(WorkloadError, match=rf"c: the chat template in .* leaves out .*{field}: {USED[field]}\b"):
        Renderer(folder).render(EVERYTHING)
    counted = Renderer(folder, allow_template_loss=True).rendered(EVERYTHING).losses
    assert counted[f"left out by the chat template: {field}"] == USED[field]


@pytest.mark.parametrize("field", DROPPING)
def test_a_recording_without_it_loses_nothing(tmp_path: Path, field: str) -> None:
    plain = Conversation(conversation_id="c", source="test", messages=(given("user"), answer("fine")))
    assert Renderer(folder_of(tmp_path, DROPPING[field])).rendered(plain).losses == {}


def test_reasoning_dropped_one_turn_later_is_no_loss_of_the_answer(tmp_path: Path) -> None:
    text = WHOLE.replace("{% if m.reasoning_content %}", "{% if m.reasoning_content and loop.last %}")
    assert dropped(template_of(tmp_path, text)) == {EARLIER_REASONING}
    assert losses(EVERYTHING, {EARLIER_REASONING: "dropped"}) == {}


def test_a_template_that_raises_loses_nothing_in_silence(tmp_path: Path) -> None:
    text = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + WHOLE
    template = template_of(tmp_path, text)
    assert probe(template, message_form(template))["system text"] == "refused"


@pytest.mark.parametrize(
    ("arguments", "form"),
    [
        ("c.function.arguments", MessageForm()),
        # Encodes text a second time: "{\"a\":1}".
        ("c.function.arguments | tojson", MessageForm(raw_arguments=False)),
        ("c.function.arguments.items() | list", MessageForm(raw_arguments=False)),
        ("'<' + c.function.arguments + '>'", MessageForm()),
    ],
)
def test_arguments_go_in_as_text_or_parsed(tmp_path: Path, arguments: str, form: MessageForm) -> None:
    assert message_form(template_of(tmp_path, WHOLE.replace("c.function.arguments", arguments))) == form


def test_calls_go_in_without_a_content_where_the_template_drops_them_otherwise(tmp_path: Path) -> None:
    text = WHOLE.replace(
        "{{ m.content }}" + CALLS, "{% if m.content is none %}" + CALLS + "{% else %}{{ m.content }}{% endif %}"
    )
    template = template_of(tmp_path, text)
    assert message_form(template) == MessageForm(call_without_text=None)
    assert "tool calls" not in dropped(template)


@pytest.mark.parametrize("field", ["reasoning_content", "thinking", "reasoning"])
def test_reasoning_goes_in_under_the_name_that_the_template_reads(tmp_path: Path, field: str) -> None:
    template = template_of(tmp_path, WHOLE.replace("m.reasoning_content", f"m.{field}"))
    assert message_form(template) == MessageForm(reasoning_field=field)


# Whether each real template takes raw arguments, and what it loses beside the reasoning of earlier turns.
REAL = {
    "GLM-4.6": (False, set()),
    "MiniMax-M2": (False, set()),
    "Mistral-Small-3.2-24B-Instruct-2506": (False, {"text beside tool calls", "reasoning"}),
    "Qwen-Qwen2.5-7B-Instruct": (False, {"reasoning"}),
    "Qwen-Qwen3-0.6B": (True, set()),
    "Qwen3-Coder": (False, {"reasoning"}),
    "Qwen3.5-4B": (False, set()),
    "deepseek-ai-DeepSeek-V3.1": (False, {"tool schemas", "reasoning"}),
    "google-gemma-2-2b-it": (
        False,
        {"tool schemas", "tool calls", "tool calls beside text", "second call of a turn", "reasoning"},
    ),
    "meta-llama-Llama-3.1-8B-Instruct": (False, {"text beside tool calls", "reasoning"}),
    "moonshotai-Kimi-K2": (False, {"reasoning"}),
    "openai-gpt-oss-120b": (False, {"second call of a turn"}),
}


@pytest.mark.parametrize("name", REAL)
def test_real_templates_lose_what_is_known(tmp_path: Path, shared: Path, name: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    template = ChatTemplate(tmp_path, shared / "data/chat_templates" / f"{name}.jinja")
    raw, lost = REAL[name]
    assert message_form(template).raw_arguments == raw
    assert dropped(template) - {EARLIER_REASONING} == lost
