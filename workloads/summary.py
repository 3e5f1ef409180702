"""What a set of sessions amounts to, in counts and medians."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from workloads.session import TURN_KINDS, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All lengths in tokens."""

    sessions: int
    tasks: int
    turns: Mapping[str, int]
    """By kind, every kind present."""
    output_tokens: int
    median_output: float
    median_new: Mapping[str, float]
    """New prompt tokens of a turn, by the kinds that occur."""
    longest_context: int


def summarise(sessions: Iterable[Session]) -> Summary | None:
    """Return the summary; None when there is no session."""
    new: defaultdict[str, list[int]] = defaultdict(list)
    outputs: list[int] = []
    contexts: list[int] = []
    tasks: Counter[str] = Counter()
    for session in sessions:
        contexts.append(session.longest_context)
        tasks[session.task_id or session.session_id] += 1
        for turn in session.turns:
            new[turn.kind].append(len(turn.delta_ids))
            outputs.append(len(turn.output_ids))
    if not outputs:
        return None
    return Summary(
        sessions=len(contexts),
        tasks=len(tasks),
        turns={kind: len(new[kind]) for kind in TURN_KINDS},
        output_tokens=sum(outputs),
        median_output=median(outputs),
        median_new={kind: median(new[kind]) for kind in TURN_KINDS if new[kind]},
        longest_context=max(contexts),
    )
