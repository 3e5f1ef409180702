"""How models write tool calls, family by family: the text of one call, or of a group of them, to names and arguments.

What a model writes follows what its chat template shows it, so the template's text says which form to expect.
Argument text is kept as the model wrote it where it is JSON already: the client sends it back, and a template that
writes it out unchanged then continues the very tokens that are cached.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call."""

    name: str
    arguments: str
    """JSON, unless the model broke it."""
    id: str | None = None
    """Where the model's format has one."""


Schemas = Mapping[str, Mapping[str, Any]]
"""Tool → its parameters' JSON schemas, by parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """A block of text between two markers that holds calls."""

    shows: str
    """What a template that teaches this format contains."""
    begin: str
    end: str | None
    """None: the block ends with the next one, or with the answer."""
    parse: Callable[[str, Schemas], list[Call]]
    """The block's calls; none where it holds none."""
    around: tuple[str, ...] = ()
    """Markers around groups of blocks, which say nothing."""
    think: tuple[str, str] = ("<think>", "</think>")
    trims: bool = True
    """Whether white space beside markers is layout."""


def call_format(template: str) -> CallFormat | None:
    """The format that a chat template teaches; None for one that is not known here."""
    return next((known for known in _FORMATS if known.shows in template), None)


def _json_call(block: str, _schemas: Schemas) -> list[Call]:
    """Hermes and Qwen: ``{"name": …, "arguments": {…}}``."""
    try:
        whole = json.loads(block)
    except (ValueError, RecursionError):
        return []
    if not isinstance(whole, dict) or not isinstance(whole.get("name"), str):
        return []
    key = "arguments" if "arguments" in whole else "parameters"
    arguments = whole.get(key, {})
    if isinstance(arguments, str):  # encoded twice
        return [Call(whole["name"], arguments)]
    return [Call(whole["name"], _as_written(block, key, arguments))]


def _as_written(block: str, key: str, value: Any) -> str:
    decoder = json.JSONDecoder()
    for match in re.finditer(rf'"{key}"\s*:\s*', block):
        try:
            found, end = decoder.raw_decode(block, match.end())
        except ValueError:
            continue
        if found == value:
            return block[match.end() : end]
    return json.dumps(value, ensure_ascii=False)


def _xml_calls(function: str, parameter: str, block: str, schemas: Schemas) -> list[Call]:
    """Calls whose parameters stand one by one, untyped: the tool's schema says which are text."""
    calls = []
    for name, inner in re.findall(function, block, re.DOTALL):
        types = schemas.get(name.strip(), {})
        values = {
            key.strip(): _typed(value, types.get(key.strip()))
            for key, value in re.findall(parameter, inner, re.DOTALL)
        }
        calls.append(Call(name.strip(), json.dumps(values, ensure_ascii=False)))
    return calls


def _coder_calls(block: str, schemas: Schemas) -> list[Call]:
    """Qwen3-Coder: ``<function=name>``, then ``<parameter=key>`` value ``</parameter>``, each on lines of its own."""
    return _xml_calls(
        r"<function=([^>\n]+)>(.*?)(?:</function>|\Z)",
        r"<parameter=([^>\n]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)",
        block,
        schemas,
    )


def _minimax_calls(block: str, schemas: Schemas) -> list[Call]:
    """MiniMax-M2: ``<invoke name="name">``, then ``<parameter name="key">value</parameter>``."""
    return _xml_calls(
        r'<invoke name="([^"\n]+)">(.*?)(?:</invoke>|\Z)',
        r'<parameter name="([^"\n]+)">(.*?)</parameter>',
        block,
        schemas,
    )


def _glm_calls(block: str, schemas: Schemas) -> list[Call]:
    """GLM-4.5 and later: the name, then ``<arg_key>key</arg_key>``, ``<arg_value>value</arg_value>``."""
    return _xml_calls(
        r"\A\s*([^\s<]+)(.*)\Z", r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", block, schemas
    )


def _typed(text: str, schema: Any) -> Any:
    """A parameter's value; text where the schema says so, says nothing, or does not fit."""
    kinds = _kinds(schema)
    if text.strip() == "null" and "null" in kinds:
        return None
    if not kinds or "string" in kinds:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        literals = {"True": True, "False": False, "None": None}  # Python's, which models write too
        return literals.get(text.strip(), text)


def _kinds(schema: Any) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    kind = schema.get("type", [])
    kinds = {one for one in (kind if isinstance(kind, list) else [kind]) if isinstance(one, str)}
    for options in (schema.get("anyOf"), schema.get("oneOf")):
        for option in options if isinstance(options, list) else []:
            kinds |= _kinds(option)
    return kinds


def _deepseek_calls(block: str, _schemas: Schemas) -> list[Call]:
    """DeepSeek V3.1: name, separator, JSON. V3 and R1: ``function``, separator, name, JSON in a fence."""
    head, separator, rest = block.partition("<｜tool▁sep｜>")
    if not separator:
        return []
    if fenced := re.fullmatch(r"\s*(\S+)\s*```json\s*(.*?)\s*(?:```)?\s*", rest, re.DOTALL):
        return [Call(fenced[1], fenced[2])]
    return [Call(head.strip(), rest.strip())] if head.strip() else []


def _kimi_calls(block: str, _schemas: Schemas) -> list[Call]:
    """Kimi K2: ``functions.name:number``, which is the call's id as well, marker, JSON."""
    id_, separator, arguments = block.partition("<|tool_call_argument_begin|>")
    match = re.fullmatch(r"\s*(?:functions\.)?([^\s:]+)(?::\d+)?\s*", id_)
    return [Call(match[1], arguments.strip(), id_.strip())] if separator and match else []


def _field_calls(block: str, _schemas: Schemas) -> list[Call]:
    """A special token before every field: name, ``<|id|>`` id where there is one, ``<|arguments|>`` JSON."""
    head, separator, arguments = block.partition("<|arguments|>")
    name, _, id_ = head.partition("<|id|>")
    return [Call(name, arguments, id_ or None)] if separator and name else []


_FORMATS = (
    CallFormat(
        shows="<|arguments|>",
        begin="<|call|>",
        end=None,
        parse=_field_calls,
        think=("<|think|>", "<|answer|>"),
        trims=False,
    ),
    CallFormat(
        shows="<｜tool▁call▁begin｜>",
        begin="<｜tool▁call▁begin｜>",
        end="<｜tool▁call▁end｜>",
        parse=_deepseek_calls,
        around=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    CallFormat(
        shows="<|tool_call_begin|>",
        begin="<|tool_call_begin|>",
        end="<|tool_call_end|>",
        parse=_kimi_calls,
        around=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ),
    CallFormat(
        shows="<minimax:tool_call>", begin="<minimax:tool_call>", end="</minimax:tool_call>", parse=_minimax_calls
    ),
    CallFormat(shows="<arg_key>", begin="<tool_call>", end="</tool_call>", parse=_glm_calls),
    CallFormat(shows="<function=", begin="<tool_call>", end="</tool_call>", parse=_coder_calls),
    CallFormat(shows="<tool_call>", begin="<tool_call>", end="</tool_call>", parse=_json_call),
)
