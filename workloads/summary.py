"""What a set of sessions amounts to, in counts and distributions."""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from workloads.session import TURN_KINDS, Session
from workloads.split import content_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    name: str
    values: Sequence[float]
    """In ascending order; never empty."""

    def quantile(self, share: float) -> float:
        """Return the quantile, between two values by linear interpolation (Hyndman & Fan 1996, type 7)."""
        place = share * (len(self.values) - 1)
        low = int(place)
        high = min(low + 1, len(self.values) - 1)
        return self.values[low] + (self.values[high] - self.values[low]) * (place - low)

    @property
    def median(self) -> float:
        return self.quantile(0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All lengths in tokens."""

    sessions: int
    tasks: int
    repeated: int
    """Sessions with the content of another one."""
    turns: Mapping[str, int]
    """By kind, every kind present."""
    output_tokens: int
    new: Distribution
    """New prompt tokens of a turn."""
    new_by_kind: Mapping[str, Distribution]
    """The same, by the kinds that occur."""
    output: Distribution
    """Output tokens of a turn."""
    context: Distribution
    """Prompt and output at the end of a session."""
    length: Distribution
    """Turns of a session."""
    wait_s: Distribution | None
    """Recorded time between an answer and the next request; None where none was recorded."""

    @property
    def distributions(self) -> tuple[Distribution, ...]:
        waits = () if self.wait_s is None else (self.wait_s,)
        return (self.new, *self.new_by_kind.values(), self.output, self.context, self.length, *waits)


def summarise(sessions: Iterable[Session]) -> Summary | None:
    """Return the summary; None when there is no session."""
    new: defaultdict[str, array[int]] = defaultdict(lambda: array("Q"))
    outputs, contexts, lengths, waits = array("Q"), array("Q"), array("Q"), array("d")
    tasks, contents = set[str](), set[str]()
    for session in sessions:
        contexts.append(session.longest_context)
        lengths.append(len(session.turns))
        tasks.add(session.task_id or session.session_id)
        contents.add(content_of(session))
        for turn in session.turns:
            new[turn.kind].append(len(turn.delta_ids))
            outputs.append(len(turn.output_ids))
            if turn.tool_wait_s is not None:
                waits.append(turn.tool_wait_s)
    if not outputs:
        return None
    return Summary(
        sessions=len(contexts),
        tasks=len(tasks),
        repeated=len(contexts) - len(contents),
        turns={kind: len(new[kind]) for kind in TURN_KINDS},
        output_tokens=sum(outputs),
        new=_distribution("new tokens", [one for kind in TURN_KINDS for one in new[kind]]),
        new_by_kind={kind: _distribution(f"  {kind} turns", new[kind]) for kind in TURN_KINDS if new[kind]},
        output=_distribution("output tokens", outputs),
        context=_distribution("longest context", contexts),
        length=_distribution("turns a session", lengths),
        wait_s=_distribution("tool wait (s)", waits) if waits else None,
    )


def _distribution(name: str, values: Sequence[float]) -> Distribution:
    return Distribution(name=name, values=sorted(values))
