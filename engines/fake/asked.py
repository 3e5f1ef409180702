"""What a request asks of the fake engine, on whichever dialect's path it came."""

import json
from dataclasses import dataclass
from typing import Any

from engines.fake.catalogue import faults, shapes
from engines.fake.wires import Chat, Completions, LlamaCpp, Wire

PATHS: dict[str, type[Completions] | type[LlamaCpp]] = {
    "/v1/completions": Completions,
    "/v1/chat/completions": Chat,
    "/completion": LlamaCpp,
}


class BadRequest(Exception):  # noqa: N818 - named for the answer it becomes
    """The message says what to send instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    path: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    ids: bool
    """The client asked for token ids."""
    stream: str
    """Which shape or fault the client asked for."""

    @property
    def dialect(self) -> str:
        return PATHS[self.path].dialect

    def wire(self, *, number: int, cached_tokens: int) -> Wire:
        kind, prompt_tokens = PATHS[self.path], len(self.prompt_ids)
        if issubclass(kind, LlamaCpp):
            return kind(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)
        name = f"cmpl-{number}"
        return kind(name=name, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens, ids=self.ids)


def read(path: str, body: bytes, *, context: int, vocab_size: int) -> Asked:
    """Check a request; a prompt of text counts a token a byte.

    Raises:
        BadRequest: it can't be served.
    """
    if path not in PATHS:
        raise BadRequest(f"nothing at {path}; post to {', '.join(PATHS)}")
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from error
    if not isinstance(fields, dict) or fields.get("stream") is not True:
        raise BadRequest("send a JSON object with stream=true; this engine only streams")
    prompt_ids = _prompt(path, fields, vocab_size)
    limit = next((name for name in ("n_predict", "max_completion_tokens") if name in fields), "max_tokens")
    length = fields.get(limit, 16)
    if type(length) is not int or length < 1:
        raise BadRequest(f"{limit} must be an integer of at least 1")
    if len(prompt_ids) + length > context:
        raise BadRequest(f"{len(prompt_ids)} prompt tokens + {limit} {length} exceed the context of {context} tokens")
    if "forced_tokens" in fields:
        output_ids = _ids("forced_tokens", fields["forced_tokens"], vocab_size)
        if len(output_ids) != length:
            raise BadRequest(f"forced_tokens holds {len(output_ids)} ids but {limit} is {length}")
    else:
        output_ids = tuple((len(prompt_ids) + k) * 40_503 % vocab_size for k in range(length))
    stream = fields.get("fault", "plain")
    check_stream(stream, PATHS[path].dialect)
    return Asked(
        path=path,
        prompt_ids=prompt_ids,
        output_ids=output_ids,
        ids=fields.get("return_token_ids") is True,
        stream=stream,
    )


def check_stream(name: str, dialect: str) -> None:
    """Raises BadRequest when the dialect has no such stream."""
    known = shapes(dialect) | faults(dialect)
    if name not in known:
        raise BadRequest(f"no stream {name!r} in the dialect {dialect}; choose one of {', '.join(known)}")


def _prompt(path: str, fields: dict[str, Any], vocab_size: int) -> tuple[int, ...]:
    if path.endswith("/chat/completions") and fields.get("prompt_token_ids") is None:
        if not fields.get("messages"):
            raise BadRequest("send messages, or prompt_token_ids")
        return tuple(json.dumps(fields["messages"]).encode())
    name = "prompt_token_ids" if path.endswith("/chat/completions") else "prompt"
    prompt = fields.get(name)
    return tuple(prompt.encode()) if isinstance(prompt, str) else _ids(name, prompt, vocab_size)


def _ids(name: str, ids: Any, vocab_size: int) -> tuple[int, ...]:
    if not isinstance(ids, list) or not ids or set(map(type, ids)) != {int}:
        raise BadRequest(f"{name} must be a list of token ids that is not empty")
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise BadRequest(f"{name} holds an id outside the vocabulary 0..{vocab_size - 1}")
    return tuple(ids)
