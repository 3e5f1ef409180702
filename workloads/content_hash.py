"""The hash of a workload's content."""

import hashlib
import math

import numpy as np

from workloads.session import Session


class ContentHash:
    """A running sha256; each variable part has its length before it, so no two contents look alike."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self.sessions = 0

    def add(self, session: Session) -> None:
        """Take in every field of the session."""
        self.sessions += 1
        for text in (session.session_id, session.source, session.task_id):
            self._text(text)
        self._count(len(session.turns))
        for turn in session.turns:
            # Sessions without a rewritten prompt, nearly all, keep the hash of before there was this field.
            self._text(turn.kind if turn.kept_ids is None else f"{turn.kind} {turn.kept_ids}")
            self._sha.update(
                np.asarray([math.nan if turn.tool_wait_s is None else turn.tool_wait_s], "<f8").tobytes()
            )
            for ids in (turn.delta_ids, turn.output_ids):
                self._count(len(ids))
                self._sha.update(np.asarray(ids, "<u4").tobytes())

    def _text(self, text: str | None) -> None:
        data = b"" if text is None else b"+" + text.encode()
        self._count(len(data))
        self._sha.update(data)

    def _count(self, count: int) -> None:
        self._sha.update(count.to_bytes(8, "little"))

    def hexdigest(self) -> str:
        return self._sha.hexdigest()
