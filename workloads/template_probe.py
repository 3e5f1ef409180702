"""What a chat template makes of messages, found by trying: one marker in each field, and does it come out?

Templates leave things out without a word: DeepSeek's the tool schemas, Llama 3's the text beside a call, most of them
the reasoning of earlier turns. A replay of such a prompt is not a replay of the recording.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from workloads.chat_template import ChatTemplate
from workloads.conversation import Conversation, Message, Role, ToolCall
from workloads.message_form import MessageForm, as_dict
from workloads.session import WorkloadError

Outcome = Literal["kept", "dropped", "refused"]
"""``refused``: the template raises an error, so nothing is lost in silence."""

EARLIER_REASONING = "reasoning of earlier turns"
"""Dropped, it is no loss of the recording: the answer itself had it. The prompts break (`workloads.prefix`)."""

_FIRST, _SECOND = "qmarkaq", "qmarkbq"  # one word each: nothing that a template could split, trim or escape
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    field: str
    messages: tuple[Message, ...]
    markers: tuple[str, ...]
    tools: tuple[Mapping[str, object], ...] = ()
    prompt: bool = False


def message_form(template: ChatTemplate) -> MessageForm:
    """Return the form of messages in which this template loses least.

    Argument text goes in as the model wrote it where the template passes it through: some encode it a second time (a
    quoted JSON string), others raise, and then it goes in parsed.
    """
    text = f'{{"{_FIRST}" :0}}'  # spaced as no serialiser writes it
    call = ToolCall(name="probe", arguments=text, call_id="probe0000")
    parsed = MessageForm(raw_arguments=False)
    forms = [
        MessageForm(raw_arguments=raw, call_without_text=content) for content in ("", None) for raw in (True, False)
    ]
    called = (_user(), _answer(calls=(call,)))
    form = next(
        (form for form in forms if _shows(template, form, called, text if form.raw_arguments else _FIRST)), parsed
    )
    thinking = (_user(), _answer("probe", reasoning=_FIRST))
    for field in _REASONING_FIELDS:
        other = MessageForm(
            raw_arguments=form.raw_arguments, call_without_text=form.call_without_text, reasoning_field=field
        )
        if _shows(template, other, thinking, _FIRST):
            return other
    return form


def probe(template: ChatTemplate, form: MessageForm) -> dict[str, Outcome]:
    """Return, field by field, whether what stands in it reaches the model."""
    return {trial.field: _outcome(template, form, trial) for trial in _trials()}


def turn_ends(template: ChatTemplate, form: MessageForm) -> dict[Role, str]:
    """What the template writes between an answer and a user message, or a tool result, up to the marker.

    GLM's templates do not close an answer: the model ends its turn by opening the next one.
    """
    call = ToolCall(name="probe", arguments="{}", call_id="probe0000")
    cases: tuple[tuple[Message, Message], ...] = (
        (_answer("probe"), _user(_FIRST)),
        (_answer(calls=(call,)), _result(_FIRST)),
    )
    ends: dict[Role, str] = {}
    for answer, following in cases:
        try:
            answered = _text(template, form, (_user(), answer))
            followed = _text(template, form, (_user(), answer, following))
        except WorkloadError:
            continue
        if followed.startswith(answered) and _FIRST in followed:
            ends[following.role] = followed[len(answered) : followed.index(_FIRST)]
    return ends


def losses(conversation: Conversation, outcomes: Mapping[str, Outcome]) -> dict[str, int]:
    """Return how much of this conversation the template leaves out, by field."""
    counts = ((field, sum(uses(message) for message in conversation.messages)) for field, uses in _USES.items())
    found = {"tool schemas": len(conversation.tools), **dict(counts)}
    return {field: count for field, count in found.items() if count and outcomes.get(field) == "dropped"}


_USES: Mapping[str, Callable[[Message], bool]] = {
    "system text": lambda message: message.role == "system",
    "tool calls": lambda message: bool(message.tool_calls) and not message.content,
    "tool calls beside text": lambda message: bool(message.tool_calls and message.content),
    "text beside tool calls": lambda message: bool(message.tool_calls and message.content),
    "second call of a turn": lambda message: len(message.tool_calls) > 1,
    "tool results": lambda message: message.role == "tool",
    "reasoning": lambda message: bool(message.reasoning),
}


def _trials() -> Iterator[_Trial]:
    function = {
        "name": _FIRST,
        "description": "probe",
        "parameters": {"type": "object", "properties": {_SECOND: {"type": "string", "description": "probe"}}},
    }
    call = ToolCall(name=_FIRST, arguments=f'{{"probe": "{_SECOND}"}}', call_id="probe0000")
    plain = ToolCall(name="probe", arguments='{"probe": 0}', call_id="probe0001")
    marked = (_FIRST, _SECOND)
    yield _Trial(
        field="tool schemas",
        messages=(_user(),),
        markers=marked,
        tools=({"type": "function", "function": function},),
        prompt=True,
    )
    yield _Trial(field="system text", messages=(_given("system", _FIRST), _user()), markers=(_FIRST,), prompt=True)
    yield _Trial(field="tool calls", messages=(_user(), _answer(calls=(call,))), markers=marked)
    yield _Trial(field="tool calls beside text", messages=(_user(), _answer("probe", calls=(call,))), markers=marked)
    yield _Trial(
        field="text beside tool calls", messages=(_user(), _answer(_FIRST, calls=(plain,))), markers=(_FIRST,)
    )
    yield _Trial(field="second call of a turn", messages=(_user(), _answer(calls=(plain, call))), markers=marked)
    yield _Trial(
        field="tool results",
        messages=(_user(), _answer(calls=(plain,)), _result(_FIRST)),
        markers=(_FIRST,),
        prompt=True,
    )
    thinking = _answer("probe", reasoning=_FIRST)
    yield _Trial(field="reasoning", messages=(_user(), thinking), markers=(_FIRST,))
    yield _Trial(field=EARLIER_REASONING, messages=(_user(), thinking, _user()), markers=(_FIRST,), prompt=True)


def _outcome(template: ChatTemplate, form: MessageForm, trial: _Trial) -> Outcome:
    try:
        text = template.render(
            [as_dict(message, form) for message in trial.messages], trial.tools, prompt=trial.prompt
        )
    except WorkloadError:
        return "refused"
    return "kept" if all(marker in text for marker in trial.markers) else "dropped"


def _shows(template: ChatTemplate, form: MessageForm, messages: tuple[Message, ...], marker: str) -> bool:
    try:
        return marker in _text(template, form, messages)
    except WorkloadError:
        return False


def _text(template: ChatTemplate, form: MessageForm, messages: tuple[Message, ...]) -> str:
    return template.render([as_dict(message, form) for message in messages], ())


def _user(content: str = "probe") -> Message:
    return _given("user", content)


def _given(role: Role, content: str) -> Message:
    return Message(role=role, origin="given", content=content)


def _result(content: str) -> Message:
    return Message(role="tool", origin="given", content=content, tool_call_id="probe0000", name="probe")


def _answer(content: str = "", reasoning: str | None = None, calls: tuple[ToolCall, ...] = ()) -> Message:
    return Message(role="assistant", origin="model", content=content, reasoning=reasoning, tool_calls=calls)
