"""The answers in what a chat completions endpoint sent back: a JSON body, or a stream of server-sent events."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

NO_ANSWER = "calls without an answer"
FAILED = "calls that the server refused or broke off with an error"
CUT = "answers whose stream breaks off before its end"
NO_COMPLETION = "calls whose answer is no chat completion"
TOKEN_LIMIT = "answers cut off by a token limit, replayed as if the model had ended them"  # noqa: S105

END = "[DONE]"
FIELD_STARTS = ("data:", "event:", "id:", "retry:", ":")


def answers(body: Any, losses: Counter[str]) -> list[Any]:
    """Return the message of each choice, in order of ``index``; none, and one loss counted, where there is no answer.

    Args:
        body: a whole completion, a bare message, the body's text (JSON or server-sent events), or None.
    """
    if isinstance(body, str):
        return _from_text(body, losses)
    if isinstance(body, dict) and body.get("error"):
        losses[FAILED] += 1
    elif isinstance(body, dict) and isinstance(body.get("choices"), list):
        return _from_choices(body["choices"], losses)
    elif isinstance(body, dict) and "role" in body:
        return [body]
    else:
        losses[NO_COMPLETION if body else NO_ANSWER] += 1
    return []


def _from_text(text: str, losses: Counter[str]) -> list[Any]:
    if not text.strip():
        losses[NO_ANSWER] += 1
        return []
    if text.lstrip().startswith(FIELD_STARTS):
        return _from_stream(text, losses)
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = text
    if isinstance(body, dict):
        return answers(body, losses)
    losses[NO_COMPLETION] += 1
    return []


def _from_choices(choices: list[Any], losses: Counter[str]) -> list[Any]:
    found = [choice for choice in choices if isinstance(choice, dict) and isinstance(choice.get("message"), dict)]
    if not found:
        losses[NO_COMPLETION] += 1
    for choice in found:
        losses[TOKEN_LIMIT] += choice.get("finish_reason") == "length"
    return [choice["message"] for choice in sorted(found, key=_index)]


def _index(choice: dict[str, Any]) -> int:
    index = choice.get("index")
    return index if isinstance(index, int) else 0


def _from_stream(text: str, losses: Counter[str]) -> list[Any]:
    choices: dict[int, _Choice] = {}
    ended = False
    for data in _data(text):
        if data == END:
            ended = True
            break
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            break
        if not isinstance(chunk, dict):
            continue
        if chunk.get("error"):
            losses[FAILED] += 1
            return []
        for part in chunk["choices"] if isinstance(chunk.get("choices"), list) else []:
            if isinstance(part, dict):
                choices.setdefault(_index(part), _Choice()).add(part)
    whole = [choice for _, choice in sorted(choices.items()) if ended or choice.finish_reason]
    losses[CUT] += len(choices) - len(whole)
    if not choices:
        losses[NO_COMPLETION if ended else CUT] += 1
    for choice in whole:
        losses[TOKEN_LIMIT] += choice.finish_reason == "length"
    return [choice.message() for choice in whole]


def _data(text: str) -> Iterator[str]:
    """Yield the data of each event (WHATWG HTML, section 9.2.6: lines of one event are joined by line feeds)."""
    lines: list[str] = []
    for line in (*text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""):
        if line.startswith("data:"):
            lines.append(line[5:].removeprefix(" "))
        elif not line and lines:
            yield "\n".join(lines)
            lines = []


class _Choice:
    """One choice of a stream; choices arrive interleaved, and a call's arguments in fragments."""

    def __init__(self) -> None:
        self.finish_reason: Any = None
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[Any, dict[str, Any]] = {}

    def add(self, part: dict[str, Any]) -> None:
        self.finish_reason = part.get("finish_reason") or self.finish_reason
        delta = part.get("delta")
        if not isinstance(delta, dict):
            return
        for key, value in delta.items():
            if key != "role" and isinstance(value, str):
                self._texts.setdefault(key, []).append(value)
        for fragment in delta["tool_calls"] if isinstance(delta.get("tool_calls"), list) else []:
            if isinstance(fragment, dict):
                self._add_call(fragment)

    def _add_call(self, fragment: dict[str, Any]) -> None:
        index = fragment.get("index")
        call = self._calls.setdefault(
            index if isinstance(index, int) else 0, {"id": None, "function": {"name": None, "arguments": ""}}
        )
        call["id"] = call["id"] or fragment.get("id")
        function = fragment.get("function")
        if not isinstance(function, dict):
            return
        if isinstance(function.get("name"), str):
            call["function"]["name"] = (call["function"]["name"] or "") + function["name"]
        if isinstance(function.get("arguments"), str):
            call["function"]["arguments"] += function["arguments"]

    def message(self) -> dict[str, Any]:
        """Return the message as an endpoint that does not stream would have."""
        texts = {key: "".join(values) for key, values in self._texts.items()}
        calls = [call for _, call in sorted(self._calls.items())]
        return {"content": None, **texts, "role": "assistant", "tool_calls": calls or None}
