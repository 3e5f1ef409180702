"""A completion request: the JSON a client sends, checked against the backend that will answer it."""

import json
from dataclasses import dataclass
from typing import Any

from engines.ostinato.backend import Backend, Encodes, Scores

MOST_LOGPROBS = 20

# Fields that would change the answer; the value that asks for nothing special. Others that are unknown are ignored.
FIXED: dict[str, Any] = {
    "temperature": 0,
    "n": 1,
    "stop": None,
    "logit_bias": None,
    "presence_penalty": 0,
    "frequency_penalty": 0,
}
_FIXED_HERE: dict[str, Any] = FIXED | {"best_of": 1, "echo": False, "suffix": None}


class BadRequest(Exception):  # noqa: N818 - named for the answer it becomes
    """The client's mistake; the message names the field and the remedy.

    Args:
        code: OpenAI's, where it has one for this mistake.
    """

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


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
    logprobs: int | None = None
    """How many of the most probable tokens to tell at each step, beside the one taken; None tells nothing."""


def parse_request(body: bytes, backend: Backend) -> CompletionRequest:
    """Read and check the body of a ``/v1/completions`` request.

    Raises:
        BadRequest: broken JSON, a wrong type, an id outside the vocabulary, a request larger than the context.
    """
    fields = parse_object(body, backend)
    refuse_unsupported(fields, _FIXED_HERE)
    logprobs = fields.get("logprobs")
    return checked(
        fields,
        backend,
        prompt_ids=_prompt(fields.get("prompt"), backend),
        max_tokens=fields.get("max_tokens"),
        default_tokens=16,
        logprobs=None if logprobs is None else count("logprobs", logprobs),
        return_token_ids=True,
    )


def parse_object(body: bytes, backend: Backend) -> dict[str, Any]:
    """A body's fields.

    Raises:
        BadRequest: no JSON object, or it asks for another model.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:  # also bytes that are no UTF-8
        raise BadRequest(f"the body is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise BadRequest(f"the body must be a JSON object, not {kind(fields)}")
    model = fields.get("model")
    if model is not None and model != backend.name:
        raise BadRequest(
            f"model {show(model)} is not served here; name {backend.name} or none", code="model_not_found"
        )
    return fields


def refuse_unsupported(fields: dict[str, Any], fixed: dict[str, Any]) -> None:
    """Raises: BadRequest: a field asks for what would change the answer and is not done here."""
    for name, default in fixed.items():
        value = fields.get(name)
        if value is not None and value != default:
            raise BadRequest(f"{name}={show(value)} is not supported: decoding is greedy; leave {name} out")


def checked(
    fields: dict[str, Any],
    backend: Backend,
    *,
    prompt_ids: list[int],
    max_tokens: Any,
    default_tokens: int | None,
    logprobs: int | None,
    return_token_ids: bool,
) -> CompletionRequest:
    """What completions and chat have in common.

    Args:
        default_tokens: where neither ``max_tokens`` nor the forced tokens say it; None takes what the context holds.

    Raises:
        BadRequest: see ``parse_request``.
    """
    forced = fields.get("forced_tokens")
    forced_ids = None if forced is None else ids_of("forced_tokens", forced, backend.vocab_size)
    room = backend.context - len(prompt_ids)
    if max_tokens is None:
        max_tokens = max(room, 1) if default_tokens is None else default_tokens
        if forced_ids:
            max_tokens = len(forced_ids)
    if type(max_tokens) is not int or max_tokens < 1:
        raise BadRequest(f"max_tokens must be an integer of at least 1, not {show(max_tokens)}")
    if forced_ids is not None and len(forced_ids) != max_tokens:
        raise BadRequest(f"forced_tokens holds {len(forced_ids)} ids but max_tokens is {max_tokens}; make them equal")
    if max_tokens > room:
        raise BadRequest(
            f"prompt of {len(prompt_ids)} tokens + max_tokens {max_tokens} = {len(prompt_ids) + max_tokens} "
            f"exceeds the context of {backend.context} tokens; shorten the request or start with a larger --context",
            code="context_length_exceeded",
        )
    if logprobs is not None and not isinstance(backend, Scores):
        raise BadRequest(f"logprobs is not supported: {backend.name} shows no logits; leave logprobs out")
    options = fields.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise BadRequest(f"stream_options must be an object, not {kind(options)}")
    return CompletionRequest(
        prompt_ids=prompt_ids,
        max_tokens=max_tokens,
        forced_ids=forced_ids,
        stream=flag(fields, "stream", default=False),
        include_usage=flag(options or {}, "include_usage", default=False),
        return_token_ids=flag(fields, "return_token_ids", default=return_token_ids),
        ignore_eos=flag(fields, "ignore_eos", default=False),
        logprobs=logprobs,
    )


def _prompt(prompt: Any, backend: Backend) -> list[int]:
    if isinstance(prompt, str):
        if not isinstance(backend, Encodes):
            raise BadRequest("prompt is text, but this server has no tokenizer; send a list of token ids")
        prompt = backend.encode(unicode("prompt", prompt))
    ids = ids_of("prompt", prompt, backend.vocab_size)
    if not ids:
        raise BadRequest("prompt is empty; send at least one token")
    return ids


def unicode(name: str, text: str) -> str:
    """A field's text, which JSON lets be more than Unicode.

    Raises:
        BadRequest: half a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"{name} holds half a surrogate pair, {text[error.start]!r}; remove it") from error
    return text


def ids_of(name: str, ids: Any, vocab_size: int) -> list[int]:
    """A field that holds token ids.

    Raises:
        BadRequest: it does not.
    """
    if not isinstance(ids, list):
        raise BadRequest(f"{name} must be a list of token ids, not {kind(ids)}")
    # Whole-list checks: prompts go to 100,000 ids, and this runs before the first token.
    if any(kind is not int for kind in set(map(type, ids))):
        at = next(i for i, value in enumerate(ids) if type(value) is not int)
        raise BadRequest(f"{name}[{at}] must be an integer token id, not {show(ids[at])}")
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        at = next(i for i, value in enumerate(ids) if not 0 <= value < vocab_size)
        raise BadRequest(f"{name}[{at}] is {ids[at]}, outside the vocabulary 0..{vocab_size - 1}")
    return ids


def count(name: str, value: Any) -> int:
    """A field that holds a number of logprobs.

    Raises:
        BadRequest: it does not.
    """
    if type(value) is not int or not 0 <= value <= MOST_LOGPROBS:
        raise BadRequest(f"{name} must be an integer from 0 to {MOST_LOGPROBS}, not {show(value)}")
    return value


def flag(fields: dict[str, Any], name: str, *, default: bool) -> bool:
    """A field that is true or false.

    Raises:
        BadRequest: it is not.
    """
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false, not {show(value)}")
    return value


def kind(value: Any) -> str:
    """What a JSON value is, in words."""
    kinds = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "nothing"}
    return kinds.get(type(value), "a number")


def show(value: Any) -> str:
    """A JSON value as it was sent, cut short."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
