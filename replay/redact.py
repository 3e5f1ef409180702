"""Takes out of a result what is nobody else's business: secrets, the user's name, the home folder."""

import getpass
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HIDDEN = "(hidden)"
_SECRET = r"(?:API_?KEY|ACCESS_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|AUTHORIZATION|AUTH)"  # noqa: S105
_VARIABLE = re.compile(rf"(?:.*_)?{_SECRET}(?:_.*)?")
"""Of an environment: ``HF_TOKEN``, ``AWS_SECRET_ACCESS_KEY``; not ``OMP_WAIT_POLICY``."""
_FIELD = re.compile(
    r"(?i)(?:.*[_-])?(?:api[_-]?key|access[_-]?key|secret(?:[_-]key)?|password|passwd|passphrase|authorization|"
    r"(?:auth|access|hf|bearer|api)[_-]token)|token"
)
"""Of a configuration or a command line: ``api_key``, ``--hf-token``; not ``experts_per_token``."""
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_HEADER = re.compile(
    r"(?i)\b((?:proxy-)?authorization\s*[:=]\s*|x-api-key\s*[:=]\s*|bearer\s+)(?:(?:bearer|basic)\s+)?[^\s\"',]+"
)
_ASSIGNED = re.compile(r"(?<![\w-])(-{0,2}[\w.-]+)=([^\s&]+)")
_KNOWN = re.compile(r"\b(?:sk-|hf_|ghp_|gho_|github_pat_|glpat-|xox[bp]-)[\w-]{16,}")
"""Keys that say by their form what they are."""
_NAME_HINT = re.compile(r"(?i)key|token|secret|passw|passphrase|credential|auth")
_TEXT_HINT = re.compile(r"(?i)[/=:@]|bearer|sk-|hf_|gh[po]_|github_pat_|glpat-|xox")
"""What every text and name that holds a secret has; a result holds thousands that do not, and is written often."""
_SHORTEST = 6
"""A variable's value below this is no secret worth the harm of hiding it wherever it occurs."""


def redact(value: Any) -> Any:
    """The value without secrets, user name and home folder, so that a result can be shown to others.

    Hidden are: values under the name of a secret, in mappings, ``NAME=value`` and ``--name value``; what stands
    before the @ of a URL; Authorization headers; well-known forms of keys; and, wherever they occur, the values of
    this process's own variables that are named for a secret.
    """
    secrets = sorted(
        (v for name, v in os.environ.items() if _VARIABLE.fullmatch(name.upper()) and len(v) >= _SHORTEST),
        key=len,
        reverse=True,
    )
    return _redacted(value, secrets, str(Path.home()), _user())


def _redacted(value: Any, secrets: list[str], home: str, user: str | None) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, HIDDEN)
        return _without_user(_without_secrets(value), home, user) if _TEXT_HINT.search(value) else value
    if isinstance(value, Mapping):
        return {
            key: HIDDEN
            if isinstance(item, str) and item and _names_secret(str(key))
            else _redacted(item, secrets, home, user)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        found: list[Any] = []
        for before, item in zip([None, *value], value, strict=False):
            named = isinstance(before, str) and before.startswith("--") and _names_secret(before)
            found.append(HIDDEN if named and isinstance(item, str) else _redacted(item, secrets, home, user))
        return found
    return value


def _names_secret(name: str) -> bool:
    """Of a dotted or dashed name the last part counts: ``+engine.env.HF_TOKEN``, ``--api-key``."""
    if not _NAME_HINT.search(name):
        return False
    last = name.lstrip("-+").rpartition(".")[2]
    return bool(_VARIABLE.fullmatch(last) if last.isupper() else _FIELD.fullmatch(last))


def _without_secrets(text: str) -> str:
    text = _USERINFO.sub(HIDDEN, text)
    text = _HEADER.sub(rf"\1{HIDDEN}", text)
    text = _ASSIGNED.sub(lambda match: f"{match[1]}={HIDDEN if _names_secret(match[1]) else match[2]}", text)
    return _KNOWN.sub(HIDDEN, text)


def _without_user(text: str, home: str, user: str | None) -> str:
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
    if user:  # as a part of a path only: a user may be called "model"
        text = re.sub(rf"(?<=/){re.escape(user)}(?=/|$)", "user", text)
    return text


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return None
