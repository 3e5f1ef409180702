"""A chat template, run as Hugging Face's ``apply_chat_template`` runs it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from workloads.session import WorkloadError

_ITEM = "mark_of_item"
_UNDATED = "26 Jul 2024"
"""What ``strftime_now`` says, so that a session has the same ids on every day. Llama 3.1's own default date."""


class _GenerationTag(Extension):
    """``{% generation %}`` … ``{% endgeneration %}`` (Hugging Face's own tag, for training): only what it holds."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance variable)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """Turns messages into the text that a model sees."""

    def __init__(self, folder: Path, file: Path | None = None) -> None:
        """Read ``file``, else the folder's ``chat_template.jinja``, else the one in ``tokenizer_config.json``.

        Raises:
            WorkloadError: there is none, or it does not parse.
        """
        config = _config(folder)
        self.name = str(file or folder)
        self.source = _source(folder, config, file)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,  # prompts are text, not HTML
            extensions=[_GenerationTag, loopcontrols],
        )
        environment.filters["tojson"] = _to_json
        environment.filters["from_json"] = json.loads  # llama.cpp's copies of some templates use it
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda _format: _UNDATED
        try:
            tree = _with_marks(environment.parse(self.source))
            tree.set_environment(environment)  # the nodes put in have none yet
            self._template: Template = environment.from_string(tree)
        except TemplateError as error:
            raise WorkloadError(f"{self.name}: the chat template does not parse ({error}); mend it") from error
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
        marks: tuple[str, str] | None = None,
    ) -> str:
        """Return the text of messages in Hugging Face's form (`workloads.message_form`).

        Args:
            prompt: end with the opening of an answer (``add_generation_prompt``).
            marks: before the text of message i write ``marks[0]``, i in digits, ``marks[1]``: at every beginning of a
                pass of a loop of the template over messages, so also where it only looks through them.

        Raises:
            WorkloadError: the template refuses these messages.
        """
        index = {id(message): number for number, message in enumerate(messages)} if marks else {}

        def mark_of_item(item: object) -> str:
            number = index.get(id(item))
            return "" if number is None or marks is None else f"{marks[0]}{number}{marks[1]}"

        try:
            return self._template.render(
                **self._special,
                messages=messages,
                tools=list(tools) or None,
                add_generation_prompt=prompt,
                **{_ITEM: mark_of_item},
            )
        except (TemplateError, TypeError, ValueError, AttributeError, LookupError) as error:
            # What a template does with a message of a kind it was not written for.
            raise WorkloadError(
                f"the chat template in {self.name} refuses these messages ({error}); use one that takes them"
            ) from error


def _with_marks(tree: nodes.Template) -> nodes.Template:
    """Let every pass of every loop begin with the mark of what it is about (nothing, unless it is a message)."""
    for loop in tree.find_all(nodes.For):
        if isinstance(loop.target, nodes.Name):
            item = nodes.Name(loop.target.name, "load")
            call = nodes.Call(nodes.Name(_ITEM, "load"), [item], [], None, None)
            loop.body.insert(0, nodes.Output([call], lineno=loop.lineno))
    return tree


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: broken JSON ({error}); copy the file again") from error
    if not isinstance(config, dict):
        raise WorkloadError(f"{path}: expected a JSON object; copy the file again")
    return config


def _source(folder: Path, config: Mapping[str, Any], file: Path | None) -> str:
    path = file or folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise WorkloadError(f"{path}: can't be read ({error}); name a jinja file") from error
    if file is not None:
        raise WorkloadError(f"{file}: no such file; correct workload.chat_template")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {item["name"]: item["template"] for item in template}
        template = named.get("tool_use", named.get("default"))
    if not isinstance(template, str):
        raise WorkloadError(
            f"{folder}: no chat template; put a chat_template.jinja beside tokenizer.json or set"
            " workload.chat_template"
        )
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
