"""What a server said when it refused or broke off, as one line and a kind of failure."""

import re
from typing import Any

import orjson

from engines.base import EngineError, FailureKind

_LONGEST = 500
# As llama-server, vLLM, SGLang, OpenAI and our own servers put it.
_CONTEXT = re.compile(
    r"exceed_context|context_length_exceeded|prompt.{0,80}too long"
    r"|(exceed|maximum|longer than|too long|too large).{0,120}(context|max_model_len)"
    r"|context.{0,120}(exceed|too long|too small)",
    re.IGNORECASE,
)


def complaint(payload: Any, otherwise: FailureKind) -> EngineError:
    """The error for a server's words: ``context`` when they are about the prompt's length, else ``otherwise``.

    Args:
        payload: an error body or event, parsed or as text: ``{"error": {"message", "type", "code"}}`` (OpenAI and
            most others), ``{"error": "…"}``, ``{"message": "…"}`` (vLLM before 0.10), ``{"detail": …}`` (FastAPI).
    """
    said = server_said(payload)
    if _CONTEXT.search(said):
        return EngineError(
            f"the prompt does not fit: the server said {said}; raise engine.context or replay shorter sessions",
            kind="context",
        )
    return EngineError(f"the server said {said}", kind=otherwise)


def server_said(payload: Any) -> str:
    """One line of at most 500 characters, the error's type in front where there is one."""
    if isinstance(payload, bytes):
        payload = payload.decode(errors="replace")
    if isinstance(payload, str):
        try:
            parsed = orjson.loads(payload)
        except orjson.JSONDecodeError:
            parsed = None
        if not isinstance(parsed, dict):
            return _one_line(payload) or "nothing"
        payload = parsed
    error = payload.get("error", payload) if isinstance(payload, dict) else payload
    if isinstance(error, dict):
        message = error.get("message") or error.get("detail")
        if isinstance(message, str):
            kind = error.get("type") or error.get("code")
            return _one_line(f"{kind}: {message}" if isinstance(kind, str) else message)
    return _one_line(error if isinstance(error, str) else orjson.dumps(error).decode())


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
