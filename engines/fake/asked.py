"""What a request asks of the fake engine, in whichever dialect it came."""

import base64
import binascii
import json
from array import array
from dataclasses import dataclass
from typing import Any, TypeAlias

from engines.fake.catalogue import faults, shapes
from engines.fake.token_wires import FreeToken, SgLang, Vllm
from engines.fake.wires import Chat, Completions, LlamaCpp, Wire

Kind: TypeAlias = type[Completions] | type[LlamaCpp] | type[SgLang]
PATHS: dict[str, Kind] = {
    "/v1/completions": Completions,
    "/v1/chat/completions": Chat,
    "/completion": LlamaCpp,
    "/generate": SgLang,
    "/inference/v1/generate": Vllm,
}
_PROMPTS = {"openai_chat": "prompt_token_ids", "sglang": "input_ids", "vllm": "token_ids"}
"""Where a dialect's prompt is; ``prompt`` in all others."""
_LIMITS = ("n_predict", "max_new_tokens", "max_completion_tokens", "max_tokens")
_HOOKED = "\0ids:"  # as the forcing hook of FreeToken takes it


class BadRequest(Exception):  # noqa: N818 - named for the answer it becomes
    """The message says what to send instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    kind: Kind
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    ids: bool
    """The client asked for token ids."""
    stream: str
    """Which shape or fault the client asked for."""

    @property
    def dialect(self) -> str:
        return self.kind.dialect

    def wire(self, *, number: int, cached_tokens: int) -> Wire:
        kind, prompt_tokens = self.kind, len(self.prompt_ids)
        if issubclass(kind, Completions):
            name = f"cmpl-{number}"
            return kind(name=name, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens, ids=self.ids)
        return kind(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)


def kind_of(path: str, prompt: Any) -> Kind:
    """FreeToken shares its path with OpenAI's completions and has prompts of its own.

    Raises:
        BadRequest: nothing is served at the path.
    """
    if path not in PATHS:
        raise BadRequest(f"nothing at {path}; post to {', '.join(PATHS)}")
    hooked = isinstance(prompt, str) and prompt.startswith(_HOOKED)
    return FreeToken if hooked and path == "/v1/completions" else PATHS[path]


def read(path: str, body: bytes, *, context: int, vocab_size: int) -> Asked:
    """Check a request; a prompt of text counts a token a byte.

    Raises:
        BadRequest: it can't be served.
    """
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from error
    if not isinstance(fields, dict) or fields.get("stream") is not True:
        raise BadRequest("send a JSON object with stream=true; this engine only streams")
    kind = kind_of(path, fields.get("prompt"))
    prompt_ids = _prompt(kind.dialect, fields, vocab_size)
    sampling = fields.get("sampling_params")
    asked = {**fields, **sampling} if isinstance(sampling, dict) else fields
    limit = next((name for name in _LIMITS if name in asked), "max_tokens")
    length = asked.get(limit, 16)
    if type(length) is not int or length < 1:
        raise BadRequest(f"{limit} must be an integer of at least 1")
    if len(prompt_ids) + length > context:
        raise BadRequest(f"{len(prompt_ids)} prompt tokens + {limit} {length} exceed the context of {context} tokens")
    stream = fields.get("fault", "plain")
    check_stream(stream, kind.dialect)
    return Asked(
        kind=kind,
        prompt_ids=prompt_ids,
        output_ids=_output(asked, len(prompt_ids), length, limit, vocab_size),
        ids=fields.get("return_token_ids") is True,
        stream=stream,
    )


def check_stream(name: str, dialect: str) -> None:
    """Raises BadRequest when the dialect has no such stream."""
    known = shapes(dialect) | faults(dialect)
    if name not in known:
        raise BadRequest(f"no stream {name!r} in the dialect {dialect}; choose one of {', '.join(known)}")


def _prompt(dialect: str, fields: dict[str, Any], vocab_size: int) -> tuple[int, ...]:
    name = _PROMPTS.get(dialect, "prompt")
    prompt = fields.get(name)
    if dialect == "openai_chat" and prompt is None:
        if not fields.get("messages"):
            raise BadRequest("send messages, or prompt_token_ids")
        return tuple(json.dumps(fields["messages"]).encode())
    if dialect == "freetoken":
        assert isinstance(prompt, str)
        try:
            prompt = array("i", base64.b64decode(prompt.removeprefix(_HOOKED), validate=True)).tolist()
        except (binascii.Error, ValueError) as error:
            raise BadRequest(f"the prompt's ids are no base64 of 32-bit integers ({error})") from error
    return tuple(prompt.encode()) if isinstance(prompt, str) else _ids(name, prompt, vocab_size)


def _output(asked: dict[str, Any], prompt_tokens: int, length: int, limit: str, vocab_size: int) -> tuple[int, ...]:
    """What is forced, or tokens of its own."""
    name = next((name for name in ("forced_tokens", "trace_decode_token_ids") if name in asked), None)
    if name is None:
        return tuple((prompt_tokens + k) * 40_503 % vocab_size for k in range(length))
    output_ids = _ids(name, asked[name], vocab_size)
    if len(output_ids) != length:
        raise BadRequest(f"{name} holds {len(output_ids)} ids but {limit} is {length}")
    return output_ids


def _ids(name: str, ids: Any, vocab_size: int) -> tuple[int, ...]:
    if not isinstance(ids, list) or not ids or set(map(type, ids)) != {int}:
        raise BadRequest(f"{name} must be a list of token ids that is not empty")
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise BadRequest(f"{name} holds an id outside the vocabulary 0..{vocab_size - 1}")
    return tuple(ids)
