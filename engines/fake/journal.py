"""The fake engine's own account of what it served: a line of JSON for each completion."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from zlib import crc32

import orjson


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamps:
    """One answer by the engine's own clock, all ``perf_counter_ns``."""

    request: int
    prompt_start: tuple[int, ...]
    """The prompt's first two ids, to find the request by."""
    arrived_ns: int
    due_ns: list[int] = field(default_factory=list)
    """One entry a token; tokens of one chunk share it."""
    sent_ns: list[int] = field(default_factory=list)
    """Taken right before the chunk was handed to the kernel."""


def lateness(answers: list[Stamps]) -> str:
    """How late tokens left, in words."""
    late_ns = sorted(
        sent - due for stamps in answers for sent, due in zip(stamps.sent_ns, stamps.due_ns, strict=True)
    )
    if not late_ns:
        return "no token was sent"
    p50, p99, worst = (late_ns[int(part * (len(late_ns) - 1))] / 1e6 for part in (0.5, 0.99, 1.0))
    return f"{len(late_ns)} tokens left late by {p50:.3f} ms at p50, {p99:.3f} ms at p99, {worst:.3f} ms at worst"


def prompt_key(prompt_ids: tuple[int, ...]) -> int:
    """A checksum of a prompt, to tell prompts apart in the journal."""
    return crc32(b",".join(b"%d" % id_ for id_ in prompt_ids))


class Journal:
    """Appends to ``path``; ``None`` keeps none.

    Numbers of completions go on where the file ends, so that an engine that was started again after a fault goes on
    with its draws instead of meeting the same fault at once.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = path.open("a+b", buffering=0) if path else None
        self._lock = threading.Lock()
        self.first_number = 1
        if self._file:
            self._file.seek(0)
            self.first_number += sum(1 for _ in self._file)

    def note(self, stamps: Stamps, *, stream: str, prompt_ids: tuple[int, ...]) -> None:
        """Write down a completion: what it was and how late its worst token left."""
        if self._file is None:
            return
        late_ns = [sent - due for sent, due in zip(stamps.sent_ns, stamps.due_ns, strict=True)]
        row: dict[str, Any] = {
            "number": stamps.request,
            "stream": stream,
            "prompt": prompt_key(prompt_ids),
            "prompt_tokens": len(prompt_ids),
            "sent_tokens": len(stamps.sent_ns),
            "arrived_ns": stamps.arrived_ns,
            "late_ns": max(late_ns, default=None),
        }
        with self._lock:
            self._file.write(orjson.dumps(row) + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file:
            self._file.close()
