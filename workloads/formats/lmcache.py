"""LMCache agent traces: one model call a line, ``{timestamp, input, output, session_id}``, in no order.

``input`` is what the agent's messages say, joined by blank lines: roles, tool calls, tool schemas and mostly the
model's own answers are gone. What can be kept is how a session grows. A call whose input begins with the whole input
of an earlier call continues it; what it adds, the repeated answer aside, is the next user message.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workloads.conversation import Conversation, Message
from workloads.formats.containers import files, rows
from workloads.formats.exchange import reasons
from workloads.formats.recognise import looks_like
from workloads.session import WorkloadError

SOURCE = "lmcache"
JOIN = "\n\n"
# tau-bench's simulated user is a model as well, and is asked this first.
GREETING = "Hi! How can I help you today?"

NO_OUTPUT = "calls whose output is empty (a tool call, which the trace leaves out)"
NO_ROLES = (
    "sessions whose roles, system prompts and tool schemas were not recorded; what a call adds is a user message"
)
REPEATED = (
    "calls with the input of an earlier call (what differs was not recorded), replayed as sessions of their own"
)
SIMULATED_USER = "calls of the simulated user"
EMPTY = "files of the folder with nothing in them"
STEPS_BACK = "lines that step back in time, put in order"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    timestamp: float
    prompt: str
    output: str


@dataclass(slots=True, kw_only=True)
class _Chain:
    messages: list[Message] = field(default_factory=list)
    last: _Call


def matches(head: Any) -> bool:
    """Say whether a file that begins with this row, or this list of rows, is of this format."""
    row = head[0] if isinstance(head, list) and head else head
    return (
        isinstance(row, dict)
        and {"timestamp", "input", "output", "session_id"} <= row.keys()
        and isinstance(row["input"], str)
    )


def load(path: Path) -> Iterator[Conversation]:
    """Yield the conversations of each session, in the order of the sessions' first lines.

    A call's one time does not tell when its answer ended, so no waits come out.

    Raises:
        WorkloadError: a file that can't be read, is empty, is not of this format, or holds no output at all.
    """
    general: Counter[str] = Counter()
    sessions: dict[str, list[_Call]] = {}
    for file in files(path):
        if path.is_dir() and not file.stat().st_size:
            general[EMPTY] += 1
            continue
        for place, row in rows(file):
            name, call = _call(place, row)
            calls = sessions.setdefault(name, [])
            general[STEPS_BACK] += bool(calls) and call.timestamp < calls[-1].timestamp
            calls.append(call)
    chains = [
        (name if number == 1 else f"{name}/{number}", name, chain)
        for name, calls in sessions.items()
        for number, chain in enumerate(_chains(calls, general), start=1)
    ]
    if not chains:
        raise WorkloadError(
            f"{path}: holds no call with an output of the agent ({reasons(general)}); use another file"
        )
    for conversation_id, name, chain in chains:
        yield Conversation(
            conversation_id=conversation_id,
            source=SOURCE,
            task_id=name,
            messages=tuple(chain.messages),
            losses=Counter({NO_ROLES: 1}) + general,
        )
        # The first conversation has reported what was left out beside them all.
        general = Counter()


def _call(place: str, row: Mapping[str, Any]) -> tuple[str, _Call]:
    name, timestamp = row.get("session_id"), row.get("timestamp")
    if (
        not matches(row)
        or not isinstance(row["output"], str)
        or not isinstance(name, str)
        or not isinstance(timestamp, int | float)
    ):
        raise WorkloadError(f"{place}: not an LMCache agent call but {looks_like(row)}; choose the format that fits")
    return name, _Call(timestamp=timestamp, prompt=row["input"], output=row["output"])


def _chains(calls: list[_Call], general: Counter[str]) -> list[_Chain]:
    """What the calls of a session make; calls that are left out are counted in ``general``."""
    chains: list[_Chain] = []
    seen: set[str] = set()
    simulated = GREETING in {call.prompt for call in calls}
    for call in sorted(calls, key=lambda call: call.timestamp):
        if simulated and (call.prompt == GREETING or call.prompt.startswith(GREETING + JOIN)):
            general[SIMULATED_USER] += 1
        elif not call.output:
            general[NO_OUTPUT] += 1
        else:
            general[REPEATED] += call.prompt in seen
            seen.add(call.prompt)
            chain = _continued(call, chains)
            if chain is None:
                chain = _Chain(last=call)
                chain.messages.append(_user(call.prompt))
                chains.append(chain)
            else:
                chain.messages.append(_user(_added(call.prompt, chain.last)))
                chain.last = call
            chain.messages.append(Message(role="assistant", origin="model", content=call.output))
    return chains


def _continued(call: _Call, chains: list[_Chain]) -> _Chain | None:
    """The chain with the longest last input after which this one adds a message."""
    found = None
    for chain in chains:
        last = chain.last.prompt
        goes_on = call.prompt.startswith(last) and call.prompt.startswith(JOIN, len(last))
        if goes_on and (found is None or len(last) >= len(found.last.prompt)):
            found = chain
    return found


def _added(prompt: str, last: _Call) -> str:
    """What a prompt adds to the last one: the answer is left out where it is repeated, with or without its role."""
    added = prompt[len(last.prompt) + len(JOIN) :]
    for answer in (last.output, f"assistant: {last.output}"):
        if added.startswith(answer + JOIN):
            return added[len(answer) + len(JOIN) :]
    return added


def _user(text: str) -> Message:
    return Message(role="user", origin="given", content=text)
