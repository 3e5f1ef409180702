"""A session as it is replayed: token ids only, one entry a model call."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

TurnKind = Literal["first", "tool", "user"]
"""What the prompt of a turn ends with: the session's start, a tool output, or a user message."""

TURN_KINDS: tuple[TurnKind, ...] = get_args(TurnKind)


class WorkloadError(Exception):
    """A workload that can't be used; the message names the file, the place and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call: the prompt grows by ``delta_ids``, the model answers ``output_ids``."""

    kind: TurnKind
    delta_ids: tuple[int, ...]
    """Prompt ids beyond what the prompt keeps of the previous turn's prompt and output."""
    output_ids: tuple[int, ...]
    """The recorded answer, end-of-turn token included; never empty."""
    tool_wait_s: float | None = None
    """Recorded time between the previous answer and this request; None when it was not recorded."""
    kept_ids: int | None = None
    """How many ids of the previous prompt and output the prompt begins with; None, as nearly always: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A recorded agent run. Every prompt is the previous prompt, the previous output and a delta.

    Only where a chat template rewrites history does a prompt keep less of them (``Turn.kept_ids``).
    """

    session_id: str
    source: str
    """The recorded format it comes from (``tau2``, ``openhands``, ``synthetic``, …)."""
    turns: tuple[Turn, ...]
    task_id: str | None = None
    """What was worked on; sessions of one task never straddle a split."""

    def prompts(self) -> Iterator[tuple[int, ...]]:
        """Yield the whole prompt of each turn, in order."""
        ids: list[int] = []
        for turn in self.turns:
            if turn.kept_ids is not None:
                del ids[turn.kept_ids :]
            ids += turn.delta_ids
            yield tuple(ids)
            ids += turn.output_ids

    @property
    def longest_context(self) -> int:
        """The most tokens that a turn's prompt and output hold together; the last turn's, unless history shrinks."""
        longest = held = 0
        for turn in self.turns:
            held = (held if turn.kept_ids is None else turn.kept_ids) + len(turn.delta_ids) + len(turn.output_ids)
            longest = max(longest, held)
        return longest
