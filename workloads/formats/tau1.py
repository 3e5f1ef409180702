"""tau-bench v1 results: a list of runs, each with its chat in ``traj``."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workloads.conversation import Conversation
from workloads.formats.chat import list_of
from workloads.formats.containers import rows
from workloads.formats.openai_message import message_of
from workloads.formats.openhands import NO_TOOLS
from workloads.formats.pairing import pair_results
from workloads.formats.recognise import looks_like
from workloads.session import WorkloadError

SOURCE = "tau1"
COLUMNS = ("task_id", "trial", "traj")
# tau-bench also ships chats as one text each, which are recognised to be refused with the reason.
DISPLAYED = "messages_display"


def matches(head: Any) -> bool:
    """Say whether a file that begins with this row, or this list of rows, is of this format."""
    row = head[0] if isinstance(head, list) and head else head
    return isinstance(row, dict) and (DISPLAYED in row or ("traj" in row and "task_id" in row))


def load(path: Path) -> Iterator[Conversation]:
    """Yield one conversation a run. Results hold the system prompt and no tool schemas.

    Raises:
        WorkloadError: a file that can't be read, is not of this format, or holds something unknown.
    """
    for place, row in rows(path, columns=COLUMNS):
        if DISPLAYED in row:
            raise WorkloadError(
                f"{place}: {DISPLAYED} is one text for the whole chat, without the tool calls the model made;"
                " use the results that run.py of tau-bench writes"
            )
        if "traj" not in row or "task_id" not in row:
            raise WorkloadError(
                f"{place}: not tau-bench v1 results but {looks_like(row)}; choose the format that fits"
            )
        yield _conversation(place, row)


def _conversation(place: str, row: Mapping[str, Any]) -> Conversation:
    losses: Counter[str] = Counter()
    messages = [
        message_of(entry, f"{place}, message {number}", losses, answer=True)
        for number, entry in enumerate(list_of(row["traj"], place, "traj"), start=1)
    ]
    losses[NO_TOOLS] += any(message.tool_calls for message in messages)
    return Conversation(
        conversation_id=f"{row['task_id']}/{row.get('trial') or 0}",
        source=SOURCE,
        task_id=str(row["task_id"]),
        messages=tuple(pair_results(messages, losses)),
        losses=+losses,
    )
