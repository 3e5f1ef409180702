"""A chat request: its messages become a completion request's prompt, its tools say how to read the output."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.ostinato import request as plain
from engines.ostinato.backend import Backend
from engines.ostinato.chat import harmony, template
from engines.ostinato.chat.calls import CallFormat, Schemas, call_format
from engines.ostinato.chat.harmony import HarmonyReader
from engines.ostinato.chat.reader import BlockReader, Reader
from engines.ostinato.chat.template import ChatTemplate, TemplateRefusal
from engines.ostinato.request import BadRequest, CompletionRequest, kind, show
from engines.ostinato.vocabulary import Vocabulary, vocabulary_path

_FIXED: dict[str, Any] = plain.FIXED | {"parallel_tool_calls": True, "functions": None, "function_call": None}
_ROLES = ("system", "developer", "user", "assistant", "tool")
_DEFAULT_THINK = ("<think>", "</think>")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What to compute, and how to read it."""

    completion: CompletionRequest
    reader: Reader
    spell: Callable[[int], bytes]
    """A token's bytes; also of those special tokens that the reader wants to see."""


class Chat:
    """What a model's folder says of chats."""

    def __init__(self, chat_template: ChatTemplate, vocabulary: Vocabulary) -> None:
        self._template, self._vocabulary = chat_template, vocabulary
        self._special = {text: id_ for id_, text in vocabulary.special().items()}
        source = chat_template.source
        self._form: CallFormat | None = None if harmony.SHOWS in source else call_format(source)
        think = self._form.think if self._form else _DEFAULT_THINK
        self._think = think if any(mark in source for mark in think) else None

    def parse(self, body: bytes, backend: Backend) -> ChatRequest:
        """Read and check the body of a ``/v1/chat/completions`` request.

        Raises:
            BadRequest: as for completions; also messages that the template does not take.
        """
        fields = plain.parse_object(body, backend)
        plain.refuse_unsupported(fields, _FIXED)
        if (form := fields.get("response_format")) is not None and form != {"type": "text"}:
            raise BadRequest(f"response_format={show(form)} is not supported; leave it out")
        tools = _tools(fields)
        if (given := fields.get("prompt_token_ids")) is not None:  # vLLM's name: a prompt that was rendered elsewhere
            ids = plain.ids_of("prompt_token_ids", given, backend.vocab_size)
        else:
            text = plain.unicode("messages", self._prompt(fields, tools))
            ids = plain.ids_of("messages", self._vocabulary.encode(text), backend.vocab_size)
        if not ids:
            raise BadRequest("the prompt is empty; send at least one token")
        limits = [fields[name] for name in ("max_completion_tokens", "max_tokens") if fields.get(name) is not None]
        completion = plain.checked(
            fields,
            backend,
            prompt_ids=ids,
            max_tokens=limits[0] if limits else None,
            default_tokens=None,
            logprobs=_logprobs(fields),
            return_token_ids=False,
        )
        reader = self._reader(tools, thinking=self._opens_reasoning(ids))
        return ChatRequest(completion, reader, self._spelling_of(reader.markers))

    def _opens_reasoning(self, prompt_ids: list[int]) -> bool:
        if self._think is None:
            return False
        spell = self._spelling_of(self._think)
        end = b"".join(spell(id_) for id_ in prompt_ids[-16:]).decode(errors="replace")
        return end.rstrip().endswith(self._think[0])

    def _prompt(self, fields: Mapping[str, Any], tools: list[dict[str, Any]] | None) -> str:
        settings = fields.get("chat_template_kwargs") or {}
        if not isinstance(settings, dict):
            raise BadRequest(f"chat_template_kwargs must be an object, not {kind(settings)}")
        taken = {"messages", "tools", "add_generation_prompt"} & settings.keys()
        if taken:
            raise BadRequest(f"chat_template_kwargs may not hold {min(taken)}; it has a field of its own")
        if effort := fields.get("reasoning_effort"):
            settings = {"reasoning_effort": effort, **settings}
        try:
            return self._template.render(_messages(fields.get("messages")), tools, settings)
        except TemplateRefusal as refusal:
            raise BadRequest(str(refusal)) from refusal

    def _reader(self, tools: list[dict[str, Any]] | None, *, thinking: bool) -> Reader:
        if harmony.SHOWS in self._template.source:
            return HarmonyReader()
        schemas: Schemas | None = None
        if tools is not None:
            functions = [tool["function"] for tool in tools]
            schemas = {
                function["name"]: (function.get("parameters") or {}).get("properties") or {} for function in functions
            }
        return BlockReader(self._form, schemas, think=self._think, thinking=thinking)

    def _spelling_of(self, markers: Sequence[str]) -> Callable[[int], bytes]:
        shown = {self._special[text]: text.encode() for text in markers if text in self._special}
        plain_bytes = self._vocabulary.bytes_of
        return lambda id_: shown.get(id_) or plain_bytes(id_)


def read(model: Path) -> Chat | None:
    """The chat of a model folder or GGUF file; None where it has no template.

    Raises:
        SetupError: a file is damaged.
    """
    found = template.read(model)
    return None if found is None else Chat(found, Vocabulary(vocabulary_path(model)))


def _logprobs(fields: Mapping[str, Any]) -> int | None:
    top = fields.get("top_logprobs")
    if not plain.flag(dict(fields), "logprobs", default=False):
        if top:
            raise BadRequest("top_logprobs needs logprobs: true")
        return None
    return 0 if top is None else plain.count("top_logprobs", top)


def _tools(fields: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The offered tools; None where there are none, or the model shall call none."""
    tools, choice = fields.get("tools"), fields.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise BadRequest(f"tool_choice={show(choice)} is not supported: the model decides; use auto or none")
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise BadRequest(f"tools must be a list, not {kind(tools)}")
    for at, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequest(
                f'tools[{at}] must be {{"type": "function", "function": {{"name": …}}}}, not {show(tool)}'
            )
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, dict):
            raise BadRequest(f"tools[{at}].function.parameters must be an object, not {kind(parameters)}")
        if parameters and not isinstance(parameters.get("properties") or {}, dict):
            raise BadRequest(f"tools[{at}].function.parameters.properties must be an object")
    return tools if tools and choice != "none" else None


def _messages(messages: Any) -> list[dict[str, Any]]:
    """In the form that templates know: contents as text, results with their tool's name."""
    if not isinstance(messages, list) or not messages:
        raise BadRequest(f"messages must be a list of at least one, not {show(messages)}")
    checked = []
    names: dict[str, str] = {}
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            raise BadRequest(f"messages[{at}] must be an object, not {kind(message)}")
        role = message.get("role")
        if role not in _ROLES:
            raise BadRequest(f"messages[{at}].role must be one of {', '.join(_ROLES)}, not {show(role)}")
        calls = _calls(at, message.get("tool_calls")) if role == "assistant" else []
        names |= {call["id"]: call["function"]["name"] for call in calls if call.get("id")}
        shaped = {key: value for key, value in message.items() if key != "tool_calls" and value is not None}
        shaped["role"] = "system" if role == "developer" else role
        shaped["content"] = _text(at, message.get("content"), may_lack=role == "assistant")
        if calls:
            shaped["tool_calls"] = calls
        answers = message.get("tool_call_id")
        if role == "tool" and "name" not in shaped and isinstance(answers, str) and answers in names:
            shaped["name"] = names[answers]
        checked.append(shaped)
    return checked


def _text(at: int, content: Any, *, may_lack: bool) -> str | None:
    if isinstance(content, str):
        return content
    if content is None and may_lack:
        return None
    if not isinstance(content, list):
        raise BadRequest(f"messages[{at}].content must be text, not {kind(content)}")
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in ("text", "refusal"):
            raise BadRequest(f"messages[{at}].content holds {show(part)}; only text parts can be read")
        if not isinstance(part.get(part["type"]), str):
            raise BadRequest(f"messages[{at}].content holds a part without text: {show(part)}")
    return "".join(part[part["type"]] for part in content)


def _calls(at: int, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, list | None):
        raise BadRequest(f"messages[{at}].tool_calls must be a list, not {kind(calls)}")
    for number, call in enumerate(calls or []):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not all(
            isinstance(function.get(key), str) for key in ("name", "arguments")
        ):
            raise BadRequest(
                f"messages[{at}].tool_calls[{number}].function must have name and arguments, both as text"
            )
        if not isinstance(call.get("id", ""), str):
            raise BadRequest(f"messages[{at}].tool_calls[{number}].id must be text, not {show(call['id'])}")
    return calls or []
