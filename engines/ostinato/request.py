"""A completion request: the JSON a client sends, checked against the backend that will answer it."""

import json
from dataclasses import dataclass
from typing import Any

from engines.ostinato.backend import Backend, Encodes

# Fields that would change the answer; the value that asks for nothing special.
_FIXED: dict[str, Any] = {
    "temperature": 0,
    "n": 1,
    "best_of": 1,
    "echo": False,
    "logprobs": None,
    "stop": None,
    "suffix": None,
    "logit_bias": None,
    "presence_penalty": 0,
    "frequency_penalty": 0,
}


class BadRequest(Exception):  # noqa: N818 - named for the answer it becomes
    """The client's mistake; the message names the field and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """Decode ``max_tokens`` tokens greedily after ``prompt_ids``, or exactly ``forced_ids``."""

    prompt_ids: list[int]
    max_tokens: int
    forced_ids: list[int] | None
    stream: bool
    include_usage: bool
    return_token_ids: bool
    ignore_eos: bool


def parse_request(body: bytes, backend: Backend) -> CompletionRequest:
    """Read and check a request body.

    Raises:
        BadRequest: broken JSON, a wrong type, an id outside the vocabulary, a request larger than the context.
    """
    try:
        fields = json.loads(body)
    except ValueError as error:  # also bytes that are no UTF-8
        raise BadRequest(f"the body is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadRequest(f"the body must be a JSON object, not {_kind(fields)}")
    for name, default in _FIXED.items():
        value = fields.get(name)
        if value is not None and value != default:
            raise BadRequest(f"{name}={json.dumps(value)} is not supported: decoding is greedy; leave {name} out")

    prompt_ids = _prompt(fields.get("prompt"), backend)
    max_tokens = fields.get("max_tokens", 16)
    if type(max_tokens) is not int or max_tokens < 1:
        raise BadRequest(f"max_tokens must be an integer of at least 1, not {_show(max_tokens)}")
    forced = fields.get("forced_tokens")
    forced_ids = None if forced is None else _ids("forced_tokens", forced, backend.vocab_size)
    if forced_ids is not None and len(forced_ids) != max_tokens:
        raise BadRequest(f"forced_tokens holds {len(forced_ids)} ids but max_tokens is {max_tokens}; make them equal")
    if len(prompt_ids) + max_tokens > backend.context:
        raise BadRequest(
            f"prompt of {len(prompt_ids)} tokens + max_tokens {max_tokens} = {len(prompt_ids) + max_tokens} "
            f"exceeds the context of {backend.context} tokens; shorten the request or start with a larger --context"
        )
    options = fields.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise BadRequest(f"stream_options must be an object, not {_kind(options)}")
    return CompletionRequest(
        prompt_ids=prompt_ids,
        max_tokens=max_tokens,
        forced_ids=forced_ids,
        stream=_flag(fields, "stream", default=False),
        include_usage=_flag(options or {}, "include_usage", default=False),
        return_token_ids=_flag(fields, "return_token_ids", default=True),
        ignore_eos=_flag(fields, "ignore_eos", default=False),
    )


def _prompt(prompt: Any, backend: Backend) -> list[int]:
    if isinstance(prompt, str):
        if not isinstance(backend, Encodes):
            raise BadRequest("prompt is text, but this server has no tokenizer; send a list of token ids")
        prompt = backend.encode(prompt)
    ids = _ids("prompt", prompt, backend.vocab_size)
    if not ids:
        raise BadRequest("prompt is empty; send at least one token")
    return ids


def _ids(name: str, ids: Any, vocab_size: int) -> list[int]:
    if not isinstance(ids, list):
        raise BadRequest(f"{name} must be a list of token ids, not {_kind(ids)}")
    # Whole-list checks: prompts go to 100,000 ids, and this runs before the first token.
    if any(kind is not int for kind in set(map(type, ids))):
        at = next(i for i, value in enumerate(ids) if type(value) is not int)
        raise BadRequest(f"{name}[{at}] must be an integer token id, not {_show(ids[at])}")
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        at = next(i for i, value in enumerate(ids) if not 0 <= value < vocab_size)
        raise BadRequest(f"{name}[{at}] is {ids[at]}, outside the vocabulary 0..{vocab_size - 1}")
    return ids


def _flag(fields: dict[str, Any], name: str, *, default: bool) -> bool:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false, not {_show(value)}")
    return value


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "nothing"}
    return kinds.get(type(value), "a number")


def _show(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
