"""Prompts nest token by token; where a template rewrites history it is refused, followed or bridged, and counted."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from workloads.chat_template import ChatTemplate
from workloads.conversation import Conversation, Message, ToolCall
from workloads.message_form import MessageForm, as_dict
from workloads.render import Rendered, Renderer
from workloads.sample_paths import TOKENIZER
from workloads.session import WorkloadError
from workloads.turn_text import common_length

OPEN = "{{ '<|' + m.role + '|>\\n' }}"
PROMPT = "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
TAKES_BACK_A_THOUGHT = (  # as Qwen3 does
    "{% for m in messages %}"
    + OPEN
    + "{% if loop.last and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|end|>\n{% endfor %}" + PROMPT
)
DROPS_EARLIER_REASONING = (
    "{% for m in messages %}" + OPEN + "{% if loop.last and m.reasoning_content %}{{ m.reasoning_content }}<|answer|>"
    "{% endif %}{{ m.content }}<|end|>\n{% endfor %}" + PROMPT
)
MOVES_TOOLS = (  # as Mistral does
    "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}{% for m in messages %}"
    "{% if tools and users and m is sameas users[-1] %}<|tools|>{{ tools | tojson }}{% endif %}"
    + OPEN
    + "{{ m.content }}<|end|>\n{% endfor %}"
    + PROMPT
)
ENDS_WITH_THE_NEXT_ROLE = (  # as GLM does
    "{% for m in messages %}" + OPEN + "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "{{ c.function.arguments }}{% endfor %}{% endfor %}" + PROMPT
)
OPENS_A_THOUGHT = (  # as MiniMax-M2 does
    "{% for m in messages %}" + OPEN + "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}</think>"
    "{% endif %}{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n<think>\n{% endif %}"
)
APPENDS = "{% for m in messages %}" + OPEN + "{{ m.content }}<|end|>\n{% endfor %}" + PROMPT
REWRITING = {
    "takes back a thought": TAKES_BACK_A_THOUGHT,
    "drops earlier reasoning": DROPS_EARLIER_REASONING,
    "moves tools": MOVES_TOOLS,
}
TOOL = {"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}


def user(content: str = "hello") -> Message:
    return Message(role="user", origin="given", content=content)


def model(content: str = "fine", reasoning: str | None = None) -> Message:
    return Message(role="assistant", origin="model", content=content, reasoning=reasoning)


def talk(*messages: Message) -> Conversation:
    return Conversation(conversation_id="c", source="test", messages=messages, tools=(TOOL,))


TALK = talk(user("a"), model("b", "hm"), user("c"), model("d", "well"), user("e"), model("f"))


def folder_with(folder: Path, template: str) -> Path:
    tokenizer = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken("<|tools|>", special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


def rendered(folder: Path, template: str, conversation: Conversation = TALK, choice: str = "replay") -> Rendered:
    renderer = Renderer(folder_with(folder, template), on_prefix_break=choice, allow_template_loss=True)
    return renderer.rendered(conversation)


@pytest.fixture(scope="module", params=REWRITING)
def rewriting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_with(tmp_path_factory.mktemp("rewriting"), REWRITING[request.param])


texts = st.lists(
    st.sampled_from(("<|end|>", "\n", "\n\n", " ", "<think>", "</think>", "one", "two words")), max_size=4
).map("".join)
talks = st.lists(st.tuples(texts, texts, st.none() | texts), min_size=1, max_size=5).map(
    lambda rounds: talk(*(one for asked, said, why in rounds for one in (user(asked), model(said, why))))
)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recorded=talks)
def test_replayed_prompts_are_the_templates_own(rewriting: Path, recorded: Conversation) -> None:
    renderer = Renderer(rewriting, on_prefix_break="replay", allow_template_loss=True)
    template = ChatTemplate(rewriting)
    session = renderer.render(recorded)
    rows = [as_dict(message, MessageForm()) for message in recorded.messages]
    held: tuple[int, ...] = ()
    for number, (prompt, turn) in enumerate(zip(session.prompts(), session.turns, strict=True)):
        assert renderer.decode(prompt) == template.render(rows[: 2 * number + 1], recorded.tools, prompt=True)
        kept = len(held) if turn.kept_ids is None else turn.kept_ids
        assert prompt == held[:kept] + turn.delta_ids
        assert kept == len(held) or held[kept : kept + 1] != prompt[kept : kept + 1]
        held = prompt + turn.output_ids


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recorded=talks)
def test_bridged_prompts_nest_and_hold_the_new_messages(rewriting: Path, recorded: Conversation) -> None:
    renderer = Renderer(rewriting, on_prefix_break="bridge", allow_template_loss=True)
    session = renderer.render(recorded)
    assert all(turn.kept_ids is None for turn in session.turns)
    for turn, asked in zip(session.turns[1:], recorded.messages[2::2], strict=True):
        delta = renderer.decode(turn.delta_ids)
        assert delta.startswith(("\n<|user|>", "\n<|tools|>"))
        assert delta.endswith(f"<|user|>\n{asked.content}<|end|>\n<|assistant|>\n")


@pytest.mark.parametrize("template", REWRITING.values(), ids=REWRITING)
def test_a_rewriting_template_is_refused_unless_told_otherwise(tmp_path: Path, template: str) -> None:
    with pytest.raises(
        WorkloadError, match=r"c: the chat template in .* rewrites history: with turn 1's prompt only [0-9]+ of the"
    ):
        rendered(tmp_path, template, choice="fail")


def test_what_a_rewrite_costs_is_counted(tmp_path: Path) -> None:
    result = rendered(tmp_path, DROPS_EARLIER_REASONING)
    first, second = result.breaks
    assert (first.turn, second.turn) == (1, 2)
    held = [
        len(prompt) + len(turn.output_ids)
        for prompt, turn in zip(result.session.prompts(), result.session.turns, strict=True)
    ]
    assert [one.before for one in result.breaks] == held[:2]
    assert [one.common for one in result.breaks] == [turn.kept_ids for turn in result.session.turns[1:]]
    assert [one.prompt for one in result.breaks] == [len(prompt) for prompt in result.session.prompts()][1:]
    again = sum(one.before - one.common for one in result.breaks)
    counts = [
        count
        for reason, count in result.losses.items()
        if reason.startswith("prompts that the chat template rewrites")
    ]
    assert counts == [2, first.common + second.common, again]
    assert 0 < again == round(result.share_rendered_again * sum(held[:2]))


def test_an_unknown_choice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"workload\.on_prefix_break='ignore': set it to fail, replay, bridge"):
        Renderer(TOKENIZER, on_prefix_break="ignore")


def test_the_next_role_ends_an_answer_that_the_template_does_not_close(tmp_path: Path) -> None:
    call = ToolCall(name="add", arguments="{}", call_id="c1")
    result = Message(role="tool", origin="given", content="42", tool_call_id="c1")
    recorded = talk(user(), dataclasses.replace(model(""), tool_calls=(call,)), result, model("42."), user(), model())
    renderer = Renderer(folder_with(tmp_path, ENDS_WITH_THE_NEXT_ROLE), allow_template_loss=True)
    session = renderer.render(recorded)
    outputs = [renderer.decode(turn.output_ids) for turn in session.turns]
    assert outputs == ["add{}<|tool|>", "42.<|user|>", "fine<|user|>"]
    template = ChatTemplate(tmp_path)
    rows = [as_dict(message, MessageForm()) for message in recorded.messages]
    for prompt, count in zip(session.prompts(), (1, 3, 5), strict=True):
        assert renderer.decode(prompt) == template.render(rows[:count], recorded.tools, prompt=True)


def test_a_prompt_is_cut_back_to_where_the_recorded_answer_begins(tmp_path: Path) -> None:
    recorded = talk(user(), model("fine"), user(), model("good", "hm"))
    with pytest.raises(WorkloadError, match="opens turn 0's answer in a way that the recorded one does not begin"):
        rendered(tmp_path, OPENS_A_THOUGHT, recorded, "fail")
    result = rendered(tmp_path, OPENS_A_THOUGHT, recorded)
    renderer = Renderer(tmp_path)
    prompts = [renderer.decode(prompt) for prompt in result.session.prompts()]
    assert prompts[0].endswith("<|assistant|>\n")
    assert prompts[1].endswith("<|assistant|>\n<think>\n")
    assert [renderer.decode(turn.output_ids) for turn in result.session.turns] == [
        "fine<|end|>",
        "hm</think>good<|end|>",
    ]
    assert result.breaks == ()
    assert list(result.losses.values()) == [1, 1]  # tool schemas, and the prompt that was cut back


def test_an_output_that_begins_with_a_line_break_keeps_ids_of_its_own(tmp_path: Path) -> None:
    result = rendered(tmp_path, APPENDS, talk(user(), model("\n\nHi"), user(), model("Hi")), "fail")
    renderer = Renderer(tmp_path)
    first, second = result.session.turns
    whole = renderer._encoder.encode(renderer.decode(first.delta_ids) + renderer.decode(first.output_ids))
    assert whole != first.delta_ids + first.output_ids
    assert first.delta_ids == renderer._encoder.encode("<|user|>\nhello<|end|>\n<|assistant|>\n")
    assert first.output_ids == renderer._encoder.encode("\n\nHi<|end|>")
    assert result.merging == 1
    assert second.kept_ids is None


def test_a_template_that_appends_is_cut_at_once_and_one_that_rewrites_is_not(tmp_path: Path) -> None:
    def passes(template: str) -> int:
        """How often the template runs for a session of 40 turns."""
        renderer = Renderer(folder_with(tmp_path, template), on_prefix_break="replay", allow_template_loss=True)
        recorded = talk(*(one for turn in range(40) for one in (user(str(turn)), model(str(turn)))))
        renderer.render(recorded)  # the probe of this shape runs once
        calls = 0
        write = renderer._template.render

        def counted(*arguments: object, **named: object) -> str:
            nonlocal calls
            calls += 1
            return write(*arguments, **named)  # type: ignore[arg-type]

        renderer._template.render = counted  # type: ignore[method-assign]
        renderer.render(recorded)
        return calls

    assert passes(APPENDS) < 20
    assert passes(TAKES_BACK_A_THOUGHT) >= 80


@given(one=st.text("ab", max_size=9), other=st.text("ab", max_size=9))
def test_common_length_is_how_far_two_texts_agree(one: str, other: str) -> None:
    common = common_length(one, other)
    assert one[:common] == other[:common]
    assert common == min(len(one), len(other)) or one[common] != other[common]
