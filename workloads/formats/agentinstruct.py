"""AgentInstruct conversations: ``{conversations: [{from, loss, value}], id}``, and re-exports as role and content."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workloads.conversation import Conversation, Message, Role
from workloads.formats.chat import list_of, text_of
from workloads.formats.containers import rows
from workloads.formats.recognise import looks_like
from workloads.session import WorkloadError

SOURCE = "agentinstruct"
ROLES: dict[str, Role] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
}
# The operating-system tasks show a solved problem first.
NEW_PROBLEM = "Now, I will start a new problem in a new OS."

EXAMPLE = "answers of an example in the prompt, which stay given"
NO_LOSS_FLAG = "sessions that do not say which answers belong to an example in the prompt; all others are replayed"


def matches(head: Any) -> bool:
    """Say whether a file that begins with this row, or this list of rows, is of this format."""
    row = head[0] if isinstance(head, list) and head else head
    turns = row.get("conversations") if isinstance(row, dict) else None
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], dict):
        return False
    return {"from", "value"} <= turns[0].keys() or {"role", "content"} <= turns[0].keys()


def load(path: Path) -> Iterator[Conversation]:
    """Yield one conversation a row.

    An answer whose ``loss`` is false was not produced for this task (a solved example, an "Ok."): it stands in the
    prompt. Actions are text; there are no tools.

    Raises:
        WorkloadError: a file that can't be read, is not of this format, or holds something unknown.
    """
    for place, row in rows(path):
        if not isinstance(row.get("conversations"), list):
            raise WorkloadError(
                f"{place}: not an AgentInstruct row but {looks_like(row)}; choose the format that fits"
            )
        yield _conversation(place, row)


def _conversation(place: str, row: Mapping[str, Any]) -> Conversation:
    losses: Counter[str] = Counter()
    turns = [
        _turn(turn, f"{place}, turn {number}")
        for number, turn in enumerate(list_of(row["conversations"], place, "conversations"), start=1)
    ]
    flagged = any(turn.get("loss") is not None for turn in turns)
    start = 0 if flagged else _new_problem(turns)
    messages = []
    for number, turn in enumerate(turns):
        role = ROLES[_name(turn)]
        example = role == "assistant" and (turn.get("loss") is False or number < start)
        losses[EXAMPLE] += example
        messages.append(
            Message(
                role=role,
                origin="model" if role == "assistant" and not example else "given",
                content=text_of(turn.get("value", turn.get("content")), f"{place}, turn {number + 1}", losses),
            )
        )
    losses[NO_LOSS_FLAG] += not flagged and any(message.origin == "model" for message in messages)
    name = str(row.get("id") or place)
    return Conversation(conversation_id=name, source=SOURCE, task_id=name, messages=tuple(messages), losses=+losses)


def _turn(turn: Any, place: str) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise WorkloadError(f"{place}: expected a turn, found {looks_like(turn)}")
    if _name(turn) not in ROLES:
        raise WorkloadError(f"{place}: from {_name(turn)!r:.40} is unknown; known are {', '.join(ROLES)}")
    if turn.get("loss") not in (None, True, False):
        raise WorkloadError(f"{place}: loss must be true, false or null, found {looks_like(turn['loss'])}")
    return turn


def _name(turn: Mapping[str, Any]) -> str:
    return str(turn.get("from", turn.get("role")))


def _new_problem(turns: list[dict[str, Any]]) -> int:
    """Index of the turn that starts the problem to be solved; 0 when no example stands before it."""
    starts = [
        number
        for number, turn in enumerate(turns)
        if str(turn.get("value", turn.get("content"))).startswith(NEW_PROBLEM)
    ]
    return starts[0] if starts else 0
