"""A tokenizer folder's chat template, run as Hugging Face's ``apply_chat_template`` runs it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from workloads.conversation import Message
from workloads.session import WorkloadError

_START, _END = "generation_start", "generation_end"
_UNDATED = "26 Jul 2024"
"""What ``strftime_now`` says, so that a session has the same ids on every day. Llama 3.1's own default date."""


class _GenerationTag(Extension):
    """``{% generation %}`` … ``{% endgeneration %}``: what the model writes (Hugging Face's own tag)."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance variable)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        start, end = (nodes.Output([nodes.Name(name, "load")], lineno=line) for name in (_START, _END))
        return [start, *body, end]


class ChatTemplate:
    """Turns messages into the text that a model sees."""

    def __init__(self, folder: Path) -> None:
        """Read ``chat_template.jinja``, or the template inside ``tokenizer_config.json``.

        Raises:
            WorkloadError: neither is there, or the template does not parse.
        """
        self._folder = folder
        config = _config(folder)
        source = _source(folder, config)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,  # prompts are text, not HTML
            extensions=[_GenerationTag, loopcontrols],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda _format: _UNDATED
        try:
            self.marks_answers = _START in meta.find_undeclared_variables(environment.parse(source))
            """The template says itself, with ``{% generation %}``, which part of its text the model writes."""
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise WorkloadError(f"{folder}: the chat template does not parse ({error}); mend it") from error
        self._special = {
            key: value["content"] if isinstance(value, dict) else value
            for key, value in config.items()
            if key.endswith("_token") and isinstance(value, str | dict)
        }

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        prompt: bool = False,
        marks: tuple[str, str] = ("", ""),
    ) -> str:
        """Return the text of messages in Hugging Face's form (``as_dict``).

        Args:
            prompt: end with the opening of an answer (``add_generation_prompt``).
            marks: put around each answer where ``marks_answers``.

        Raises:
            WorkloadError: the template refuses these messages.
        """
        try:
            return self._template.render(
                **self._special,
                messages=messages,
                tools=list(tools) or None,
                add_generation_prompt=prompt,
                **{_START: marks[0], _END: marks[1]},
            )
        except (TemplateError, TypeError, ValueError, AttributeError) as error:
            # What a template does with a message of a kind it was not written for.
            raise WorkloadError(
                f"the chat template in {self._folder} refuses these messages ({error}); use one that takes them"
            ) from error

    def takes_raw_arguments(self) -> bool:
        """Whether argument text passes through as the model wrote it; else the template wants it parsed.

        Found by trying: some templates parse or re-serialise text, others raise.
        """
        text = '{"probe" :0}'  # spaced as no serialiser writes it
        call = {"id": "probe0000", "type": "function", "function": {"name": "probe", "arguments": text}}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "probe"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        try:
            return text in self.render(messages, ())
        except WorkloadError:
            return False


def as_dict(message: Message, *, raw_arguments: bool) -> dict[str, Any]:
    """Return the message in Hugging Face's form; fields it does not have are left out."""
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        row["reasoning_content"] = message.reasoning
    if message.tool_calls:
        row["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": call.arguments if raw_arguments else _parsed(call.arguments),
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        row["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        row["name"] = message.name
    return row


def _parsed(arguments: str) -> object:
    """The argument object; text that is none (a model's slip) stays text."""
    try:
        value = json.loads(arguments)
    except json.JSONDecodeError:
        return arguments
    return value if isinstance(value, dict) else arguments


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise WorkloadError(f"{path}: broken JSON at line {error.lineno} ({error.msg}); mend that line") from error
    if not isinstance(config, dict):
        raise WorkloadError(f"{path}: expected a JSON object; copy the file again")
    return config


def _source(folder: Path, config: Mapping[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {item["name"]: item["template"] for item in template}
        template = named.get("tool_use", named.get("default"))
    if not isinstance(template, str):
        raise WorkloadError(f"{folder}: no chat template; put a chat_template.jinja beside tokenizer.json")
    return template


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Hugging Face's filter: unlike jinja2's it escapes neither HTML nor, unless asked to, non-ASCII text."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
