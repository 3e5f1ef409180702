"""Which session a call belongs to: the one whose messages it repeats and goes on from."""

import hashlib
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workloads.formats.completion import answers
from workloads.formats.openai_message import read
from workloads.formats.read_message import PromptReader, Read
from workloads.session import WorkloadError


@dataclass(frozen=True, slots=True)
class _Point:
    """Where a later call may go on."""

    session_id: str
    answered_s: float | None
    """When the answer before it had come; None for a prompt that got none."""


class Sessions:
    """Takes calls in the order in which their answers ended, so none before a call it goes on from.

    A call goes on from an earlier one when its messages begin with that one's messages, best with its answer too
    (an agent may send its answer back changed). The same messages once more are a retry when they had no answer, and
    a session of their own when they had: a second run of the task.
    """

    def __init__(self) -> None:
        self._run = secrets.token_hex(4)
        self._reader = PromptReader(read)
        self._points: dict[bytes, _Point] = {}
        self._texts: dict[str, str | list[Any]] = {}
        self._started = 0

    def session_of(
        self, request: Mapping[str, Any], response: Any, *, sent_s: float, ended_s: float, known: str | None = None
    ) -> tuple[str, float | None]:
        """Take a call; return its session, and the seconds between the answer it goes on from and its request.

        Args:
            request: the body that was sent.
            response: what came back, as a line of the recording holds it.
            known: its session, when it was recorded before.
        """
        prompt = request.get("prompt")
        if not request.get("messages") and isinstance(prompt, str | list):
            return self._session_of_text(prompt, known), None
        try:
            prompts = self._reader.prompt(list(request.get("messages") or []), "")
            replies = [read(one | {"role": "assistant"}, "", answer=True) for one in answers(response, Counter())]
        except (WorkloadError, TypeError):  # nothing that any model is known to speak
            return known or self._new(), None
        digests = _digests(prompts)
        before = self._before(digests)
        session_id = known or (before.session_id if before else self._new())
        for reply in replies:
            self._points[_extended(digests[-1], reply)] = _Point(session_id, ended_s)
        self._points[digests[-1]] = _Point(session_id, ended_s if replies else None)
        wait_s = None if before is None or before.answered_s is None else sent_s - before.answered_s
        return session_id, wait_s

    def _before(self, digests: list[bytes]) -> _Point | None:
        for kept in range(len(digests) - 1, 0, -1):
            point = self._points.get(digests[kept])
            if point is None:
                continue
            repeated = kept == len(digests) - 1 and point.answered_s is not None
            if not repeated:
                return point
        return None

    def _session_of_text(self, prompt: str | list[Any], known: str | None) -> str:
        """As for messages, but by the text or the token ids alone."""
        best = known or max(
            (name for name, earlier in self._texts.items() if _begins(prompt, earlier)),
            key=lambda name: len(self._texts[name]),
            default=None,
        )
        session_id = best or self._new()
        self._texts[session_id] = prompt
        return session_id

    def _new(self) -> str:
        self._started += 1
        return f"{self._run}-{self._started}"


def _begins(prompt: str | list[Any], earlier: str | list[Any]) -> bool:
    return type(prompt) is type(earlier) and len(prompt) > len(earlier) and prompt[: len(earlier)] == earlier


def _digests(prompt: list[Read]) -> list[bytes]:
    """A digest of each beginning of the prompt, the empty one first."""
    digests = [b""]
    for message in prompt:
        digests.append(_extended(digests[-1], message))
    return digests


def _extended(before: bytes, message: Read) -> bytes:
    return hashlib.sha256(before + message.key).digest()
