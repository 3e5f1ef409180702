"""Secrets out of what is recorded: fields that hold one, and echoes of the ones that a request carried."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from workloads.capture.exchange import Headers

HIDDEN = "[secret]"
NAMES = {
    "access_token",
    "api_key",
    "apikey",
    "auth_token",
    "authentication",
    "authorization",
    "bearer_token",
    "client_secret",
    "cookie",
    "key",
    "ocp_apim_subscription_key",
    "password",
    "proxy_authorization",
    "secret",
    "sig",
    "signature",
    "subscription_key",
    "token",
    "x_api_key",
    "x_goog_api_key",
}
SPOKEN = ("messages", "prompt", "tools", "functions", "choices", "response_format", "logit_bias")
"""What the model reads and writes: a tool may well have a parameter ``password``."""
SHORTEST = 8
"""Shorter values, and plain words, are the placeholders of servers that ask for no key; hiding them would take
words out of conversations."""


def fields_hidden(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with its secret fields hidden, at any depth outside what the model reads and writes."""
    return {key: value if key in SPOKEN else _hidden(key, value) for key, value in body.items()}


def _hidden(key: str, value: Any) -> Any:
    if _is_secret(key) and value is not None:
        return HIDDEN
    if isinstance(value, dict):
        return {inner: _hidden(inner, one) for inner, one in value.items()}
    if isinstance(value, list):
        return [_hidden("", one) for one in value]
    return value


def carried(target: bytes, headers: Headers, body: Mapping[str, Any]) -> list[str]:
    """Return the secrets that a request carried in its headers, its query and its body, the longest first."""
    found: set[str] = set()
    for name, value in headers:
        if _is_secret(name.decode("latin-1")):
            text = value.decode("latin-1")
            found |= {text, text.rpartition(" ")[2]}  # "Bearer x" and x
    query = parse_qsl(target.partition(b"?")[2].decode("latin-1"))
    found |= {value for name, value in query if _is_secret(name)}
    for key, value in body.items():
        if key not in SPOKEN:
            found |= set(_secrets(key, value))
    told = (secret for secret in found if len(secret) >= SHORTEST and not secret.isalpha())
    return sorted(told, key=len, reverse=True)


def _secrets(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner, one in value.items():
            yield from _secrets(key if _is_secret(key) else inner, one)
    elif isinstance(value, list):
        for one in value:
            yield from _secrets(key, one)
    elif isinstance(value, str) and _is_secret(key):
        yield value


def echoes_hidden(value: Any, secrets: Sequence[str]) -> Any:
    """Return a JSON value in whose texts none of the secrets is left."""
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, HIDDEN)
    elif isinstance(value, dict):
        return {key: echoes_hidden(one, secrets) for key, one in value.items()}
    elif isinstance(value, list):
        return [echoes_hidden(one, secrets) for one in value]
    return value


def _is_secret(name: str) -> bool:
    return name.lower().replace("-", "_") in NAMES
