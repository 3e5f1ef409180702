"""Chat templates against transformers' own rendering, and how messages are shaped for each."""

import json
from pathlib import Path
from typing import Any

import pytest

from engines.ostinato.chat import template
from engines.ostinato.chat.template import ChatTemplate, TemplateRefusal
from engines.ostinato.errors import SetupError

CALL = {"id": "c0", "type": "function", "function": {"name": "look", "arguments": '{"at" :"é<"}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Look <there>."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c0", "name": "look", "content": "seen"},
]
TOOLS = [
    {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
]


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("Qwen-Qwen3-0.6B", True),  # writes text as it is
        ("Qwen-Qwen2.5-7B-Instruct", False),  # encodes what it gets
        ("Qwen3-Coder", False),  # walks through it
        ("GLM-4.6", False),
        ("deepseek-ai-DeepSeek-V3.1", False),
        ("moonshotai-Kimi-K2", False),
        ("openai-gpt-oss-120b", False),
    ],
)
def test_prompts_equal_transformers_rendering(name: str, raw: bool, shared: Path) -> None:
    pytest.importorskip("transformers", reason="the judge is transformers' own rendering")
    from transformers.utils.chat_template_utils import render_jinja_template

    source = (shared / "data" / "chat_templates" / f"{name}.jinja").read_text()
    arguments = CALL["function"]["arguments"]  # type: ignore[index]
    function = {"name": "look", "arguments": arguments if raw else json.loads(arguments)}
    shaped = [dict(message) for message in MESSAGES]
    shaped[2] |= {"content": "", "tool_calls": [CALL | {"function": function}]}
    (expected,), _ = render_jinja_template(
        [shaped], tools=TOOLS, chat_template=source, add_generation_prompt=True, bos_token="<s>"
    )
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(MESSAGES, TOOLS) == expected


def test_arguments_that_the_model_broke_go_in_as_text() -> None:
    found = ChatTemplate("{% for m in messages %}{{ m.tool_calls[0].function.arguments | tojson }}{% endfor %}", {})
    broken = CALL | {"function": {"name": "look", "arguments": '{"at": '}}
    text = found.render([{"role": "assistant", "content": None, "tool_calls": [broken]}], None)
    assert text == json.dumps('{"at": ')


def test_reasoning_goes_into_the_field_that_the_template_reads() -> None:
    found = ChatTemplate("{% for m in messages %}{{ m.thinking }}{% endfor %}", {})
    assert found.render([{"role": "assistant", "content": "x", "reasoning_content": "hm"}], None) == "hm"


def test_what_a_template_refuses_is_said_in_its_own_words() -> None:
    found = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(TemplateRefusal, match="roles must alternate"):
        found.render(MESSAGES, None)
    with pytest.raises(TemplateRefusal, match="does not take these messages"):
        ChatTemplate("{{ messages.pop() }}", {}).render(MESSAGES, None)  # the sandbox lets nobody change them


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"chat_template.jinja": "A", "tokenizer_config.json": '{"chat_template": "B"}'}, "A"),
        ({"tokenizer_config.json": '{"chat_template": "B"}'}, "B"),
        ({"chat_template.json": '{"chat_template": "C"}'}, "C"),
        (
            {
                "tokenizer_config.json": json.dumps(
                    {"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "E"}]}
                )
            },
            "E",
        ),
        ({"tokenizer_config.json": '{"eos_token": "x"}'}, None),
        ({}, None),
    ],
)
def test_where_a_template_is_looked_for(files: dict[str, str], expected: str | None, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = template.read(tmp_path)
    assert (found.source if found else None) == expected


def test_special_tokens_have_names_in_a_template(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "{{ bos_token }}{{ eos_token }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = template.read(tmp_path)
    assert found is not None
    assert found.render(MESSAGES, None) == "<s></s>"


@pytest.mark.parametrize(("name", "text"), [("chat_template.jinja", "{% if %}"), ("tokenizer_config.json", "{")])
def test_a_damaged_file_is_named(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SetupError, match=r"does not parse|tokenizer_config\.json is damaged"):
        template.read(tmp_path)
