"""Model output taken apart into content, reasoning and tool calls, with the models' own templates as the judge."""

import json
from pathlib import Path
from typing import Any

import pytest

from engines.ostinato.chat import template
from engines.ostinato.chat.reader import Part, Reader
from engines.ostinato.chat.request import Chat
from engines.ostinato.chat.template import ChatTemplate
from engines.ostinato.vocabulary import Vocabulary
from workloads.sample_paths import TOKENIZER

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "find_files",
            "description": "Finds files.",
            "parameters": {
                "type": "object",
                "properties": {
                    "pattern": {"type": "string", "description": "What to find."},
                    "depth": {"type": "integer", "description": "How deep."},
                    "deep": {"type": "boolean", "description": "Whether."},
                    "names": {"type": "array", "items": {"type": "string"}, "description": "Which."},
                },
            },
        },
    }
]
ARGUMENTS = {"pattern": 'a "quoted" <é>\nline', "depth": 3, "deep": True, "names": ["x", "y"]}
ENDS = ("<|im_end|>", "<｜end▁of▁sentence｜>", "[e~[", "<|end|>")
WITH_TOOLS = {
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "Qwen3-Coder",
    "Qwen3.5-4B",
    "GLM-4.6",
    "MiniMax-M2",
    "deepseek-ai-DeepSeek-V3.1",
    "moonshotai-Kimi-K2",
    "openai-gpt-oss-120b",
}


def chat_of(source: str) -> Chat:
    return Chat(ChatTemplate(source, {"bos_token": "<s>"}), Vocabulary(TOKENIZER / "tokenizer.json"))


def source_of(name: str, shared: Path) -> str:
    return (shared / "data" / "chat_templates" / f"{name}.jinja").read_text()


def read(reader: Reader, text: str, size: int) -> list[Part]:
    parts = [part for at in range(0, len(text), size) for part in reader.feed(text[at : at + size])]
    return parts + reader.end()


def taken_apart(parts: list[Part]) -> tuple[str, str, list[tuple[str, Any]]]:
    calls = [(part.call.name, json.loads(part.call.arguments)) for part in parts if part.call]
    return "".join(part.content for part in parts), "".join(part.reasoning for part in parts), calls


def message(content: str | None, *arguments: dict[str, Any], reasoning: str | None = None) -> dict[str, Any]:
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": "find_files", "arguments": json.dumps(one)}}
        for i, one in enumerate(arguments)
    ]
    shaped: dict[str, Any] = {"role": "assistant", "content": content}
    return shaped | ({"tool_calls": calls} if calls else {}) | ({"reasoning_content": reasoning} if reasoning else {})


def output_of(found: ChatTemplate, answer: dict[str, Any]) -> tuple[str, str]:
    """(the prompt, what the model would have written to make this answer), by the template itself."""
    user = {"role": "user", "content": "Find them."}
    if "minimax" in found.source:  # its prompts open the reasoning, its history leaves out an empty one
        answer = {"reasoning_content": "Hm.", **answer}
    prompt = found.render([user], TOOLS)
    shaped = [found._shaped(one, raw=found._raw, nothing=found._nothing) for one in (user, answer)]
    both = found._render(shaped, TOOLS, {"add_generation_prompt": False})
    assert both.startswith(prompt)
    output = both[len(prompt) :]
    cuts = [at for end in ENDS if (at := output.rfind(end)) >= 0 and "<|channel|>" not in found.source]
    return prompt, output[: min(cuts)] if cuts else output


@pytest.mark.parametrize("size", [1, 3, 10_000])
@pytest.mark.parametrize("name", sorted(WITH_TOOLS))
def test_calls_that_the_models_template_writes_are_read_back(name: str, size: int, shared: Path) -> None:
    chat = chat_of(source_of(name, shared))
    prompt, output = output_of(chat._template, message("", ARGUMENTS))
    reader = chat._reader(TOOLS, thinking=prompt.rstrip().endswith("<think>"))
    content, _reasoning, calls = taken_apart(read(reader, output, size))
    assert calls == [("find_files", ARGUMENTS)]
    assert content == ""


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize("name", sorted(WITH_TOOLS - {"openai-gpt-oss-120b"}))
def test_text_and_two_calls_are_told_apart(name: str, size: int, shared: Path) -> None:
    chat = chat_of(source_of(name, shared))
    prompt, output = output_of(chat._template, message("I look < here.", ARGUMENTS, {"pattern": "null"}))
    reader = chat._reader(TOOLS, thinking=prompt.rstrip().endswith("<think>"))
    content, _reasoning, calls = taken_apart(read(reader, output, size))
    assert calls == [("find_files", ARGUMENTS), ("find_files", {"pattern": "null"})]
    assert content == "I look < here."


@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "GLM-4.6", "MiniMax-M2", "Qwen3.5-4B"])
def test_reasoning_is_told_apart_whoever_opens_it(name: str, size: int, shared: Path) -> None:
    chat = chat_of(source_of(name, shared))
    prompt, output = output_of(chat._template, message("Done.", reasoning="Hm, <b>\n\nyes"))
    reader = chat._reader(None, thinking=prompt.rstrip().endswith("<think>"))
    assert taken_apart(read(reader, output, size)) == ("Done.", "Hm, <b>\n\nyes", [])


@pytest.mark.parametrize("name", ["google-gemma-2-2b-it", "meta-llama-Llama-3.1-8B-Instruct"])
def test_what_an_unknown_template_teaches_stays_content(name: str, shared: Path) -> None:
    reader = chat_of(source_of(name, shared))._reader(TOOLS, thinking=False)
    text = '{"name": "find_files", "parameters": {}} <tool_call>'
    assert taken_apart(read(reader, text, 1)) == (text, "", [])


@pytest.mark.parametrize("size", [1, 10_000])
def test_the_bundled_template_keeps_every_space(size: int) -> None:
    found = template.read(TOKENIZER)
    assert found is not None
    chat = Chat(found, Vocabulary(TOKENIZER / "tokenizer.json"))
    _prompt, output = output_of(found, message(" I look \n", {"depth": 1}, {"depth": 2}, reasoning=" hm "))
    parts = read(chat._reader(TOOLS, thinking=False), output, size)
    assert taken_apart(parts) == (" I look \n", " hm ", [("find_files", {"depth": 1}), ("find_files", {"depth": 2})])
    assert [part.call.id for part in parts if part.call] == ["c0", "c1"]


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_harmony_channels(size: int, shared: Path) -> None:
    reader = chat_of(source_of("openai-gpt-oss-120b", shared))._reader(TOOLS, thinking=False)
    output = (
        "<|channel|>analysis<|message|>Let me think.<|end|><|start|>assistant<|channel|>commentary<|message|>Looking."
        "<|end|><|start|>assistant<|channel|>commentary to=functions.find_files <|constrain|>json<|message|>"
        '{"depth": 2}<|call|>'
    )
    assert taken_apart(read(reader, output, size)) == ("Looking.", "Let me think.", [("find_files", {"depth": 2})])


def test_deepseek_v3_writes_the_name_after_the_separator() -> None:
    reader = chat_of("<｜tool▁call▁begin｜>")._reader(TOOLS, thinking=False)
    output = (
        "Now.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>find_files\n```json\n"
        '{"depth": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    )
    assert taken_apart(read(reader, output, 1)) == ("Now.", "", [("find_files", {"depth": 1})])


def test_arguments_stay_as_the_model_wrote_them() -> None:
    reader = chat_of("<tool_call>")._reader(TOOLS, thinking=False)
    (part,) = read(reader, '<tool_call>\n{"name": "find_files", "arguments": {"depth" :  1}}\n</tool_call>', 1)
    assert part.call is not None
    assert part.call.arguments == '{"depth" :  1}'


def test_a_call_without_its_closing_tag_counts_when_it_is_whole() -> None:
    text = '<tool_call>{"name": "find_files", "arguments": {}}'
    (part,) = read(chat_of("<tool_call>")._reader(TOOLS, thinking=False), text, 4)
    assert part.call is not None
    cut = text[:-3]
    assert taken_apart(read(chat_of("<tool_call>")._reader(TOOLS, thinking=False), cut, 4)) == (cut, "", [])


def test_a_broken_call_is_content_as_it_was_written() -> None:
    text = 'So: <tool_call>{"name": 1}</tool_call> and on'
    content, _, calls = taken_apart(read(chat_of("<tool_call>")._reader(TOOLS, thinking=False), text, 5))
    assert calls == []
    assert content == text


def test_schemas_that_make_no_sense_and_endless_nesting_break_nothing() -> None:
    tools = [{"function": {"name": "f", "parameters": {"properties": {"a": {"type": [{}, "integer"], "anyOf": 5}}}}}]
    reader = chat_of("<function=")._reader(tools, thinking=False)
    text = f"<tool_call><function=f><parameter=a>{'[' * 100_000}</parameter></function></tool_call>"
    assert taken_apart(read(reader, text, 1000)) == ("", "", [("f", {"a": "[" * 100_000})])
    text = "<tool_call>" + "[" * 100_000 + "</tool_call>"
    assert taken_apart(read(chat_of("<tool_call>")._reader(TOOLS, thinking=False), text, 1000)) == (text, "", [])


def test_without_tools_nothing_is_a_call() -> None:
    text = '<tool_call>{"name": "find_files", "arguments": {}}</tool_call>'
    assert taken_apart(read(chat_of("<tool_call>")._reader(None, thinking=False), text, 1)) == (text, "", [])


def test_a_tag_in_the_middle_of_an_answer_opens_no_reasoning() -> None:
    text = "The tag <think> opens it."
    assert taken_apart(read(chat_of("<think>")._reader(None, thinking=False), text, 1)) == (text, "", [])
