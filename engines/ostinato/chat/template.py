"""A model's chat template, run as transformers runs it: in jinja2's sandbox, with the same filters and functions."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engines.ostinato import gguf_header
from engines.ostinato.errors import SetupError

_REASONING = ("reasoning_content", "thinking", "reasoning")
_MARK = "qmarkq"
_RENDER_ERRORS = (TemplateError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""What a template does with a message of a kind it was not written for."""


class TemplateRefusal(Exception):  # noqa: N818 - the template said no
    """The template does not take these messages."""


class ChatTemplate:
    """Turns messages into the text that a model sees.

    How a template wants a call's arguments (as text, or parsed) and an answer without text (empty or none) is found
    out by trying. Text that comes out as it went in is best: the next prompt then continues what the model wrote.
    """

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        """Args: special: ``bos_token``, ``eos_token``, … by name.

        Raises:
            SetupError: the template does not parse.
        """
        self.source = source
        self._special = dict(special)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,  # prompts are text, not HTML
            extensions=[_GenerationTag, loopcontrols],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            self._template: Template = environment.from_string(source)
        except TemplateError as error:
            raise SetupError(f"the model's chat template does not parse ({error}); mend it") from error
        self._reasoning = [name for name in _REASONING if name in source] or [_REASONING[0]]
        self._raw, self._nothing = self._form()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        settings: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt, up to where the answer begins.

        Args:
            messages: in OpenAI's form, contents as text or None, arguments as text.
            tools: None where there are none.
            settings: further names for the template.

        Raises:
            TemplateRefusal: the template refuses these messages.
        """
        shaped = [self._shaped(message, raw=self._raw, nothing=self._nothing) for message in messages]
        return self._render(shaped, tools, {**(settings or {}), "add_generation_prompt": True})

    def _form(self) -> tuple[bool, str | None]:
        text = f'{{"{_MARK}" :0}}'  # spaced as no serialiser writes it
        function = {"name": "probe", "arguments": text}
        call = {"id": "probe0000", "type": "function", "function": function}
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "probe"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ]
        for nothing in ("", None):
            for raw in (True, False):
                shaped = [self._shaped(message, raw=raw, nothing=nothing) for message in messages]
                try:
                    shown = self._render(shaped, None, {"add_generation_prompt": False})
                except TemplateRefusal:
                    continue
                if (text if raw else _MARK) in shown:
                    return raw, nothing
        return False, ""

    def _shaped(self, message: Mapping[str, Any], *, raw: bool, nothing: str | None) -> dict[str, Any]:
        shaped = dict(message)
        reasoning = next((shaped.pop(name) for name in _REASONING if shaped.get(name)), None)
        if reasoning is not None:
            shaped |= dict.fromkeys(self._reasoning, reasoning)
        if shaped.get("content") is None:
            shaped["content"] = nothing
        if calls := shaped.pop("tool_calls", None):
            shaped["tool_calls"] = [
                call
                if raw
                else call | {"function": call["function"] | {"arguments": _parsed(call["function"]["arguments"])}}
                for call in calls
            ]
        return shaped

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        settings: Mapping[str, Any],
    ) -> str:
        names = {"documents": None, **self._special, **settings, "messages": messages, "tools": tools}
        try:
            return self._template.render(names)
        except _RENDER_ERRORS as error:
            raise TemplateRefusal(f"the model's chat template does not take these messages: {error}") from error


def read(model: Path) -> ChatTemplate | None:
    """The template of a model folder: ``chat_template.jinja``, or the one in ``tokenizer_config.json``; of a GGUF
    file the one in its header, unless such a file lies beside it. None without.

    Raises:
        SetupError: a file is damaged.
    """
    folder = model.parent if model.suffix == ".gguf" else model
    config = _object(folder / "tokenizer_config.json")
    source = next(iter(_sources(folder, config)), None)
    if source is None:
        return _in_gguf(model) if model.suffix == ".gguf" else None
    special = {
        key: value["content"] if isinstance(value, dict) else value
        for key, value in config.items()
        if key.endswith("_token") and isinstance(value, str | dict)
    }
    return ChatTemplate(source, special)


def _in_gguf(file: Path) -> ChatTemplate | None:
    fields = gguf_header.read(file).fields
    source = fields.get("tokenizer.chat_template")
    if not isinstance(source, str):
        return None
    tokens = fields.get("tokenizer.ggml.tokens", [])
    ids = {name: fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "unknown", "padding")}
    return ChatTemplate(source, {f"{name}_token": tokens[id_] for name, id_ in ids.items() if id_ is not None})


def _sources(folder: Path, config: Mapping[str, Any]) -> Iterator[str]:
    try:
        if (file := folder / "chat_template.jinja").is_file():
            yield file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{file} can't be read: {error}; download it again") from error
    for found in (_object(folder / "chat_template.json").get("chat_template"), config.get("chat_template")):
        if isinstance(found, list):
            named = {item["name"]: item["template"] for item in found}
            yield from (named[name] for name in ("tool_use", "default") if name in named)
        elif isinstance(found, str):
            yield found


def _object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} is damaged: {error}; download it again") from error
    return content if isinstance(content, dict) else {}


def _parsed(arguments: str) -> Any:
    """As text where a model broke it."""
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except ValueError:
        return arguments


class _GenerationTag(Extension):
    """``{% generation %}`` … ``{% endgeneration %}`` (transformers' own tag, for training): only what it holds."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance variable)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike jinja2's it escapes neither HTML nor, unless asked to, non-ASCII text."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
