"""OpenHands runs whose calls are text: SWE-smith and SWE-play rows.

The model writes ``<function=…><parameter=…>`` into its answer and reads results as user messages; both stay text.
SWE-smith's other split has calls and results of their own, in SWE-agent's form.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workloads.conversation import Conversation
from workloads.formats.containers import rows
from workloads.formats.recognise import looks_like
from workloads.formats.swe_agent import history
from workloads.session import WorkloadError

SOURCE = "openhands_text"
COLUMNS = ("id", "instance_id", "traj_id", "source", "messages")
CALL = "<function="
RESULTS = ("OBSERVATION:", "EXECUTION RESULT of [")


def matches(head: Any) -> bool:
    """Whether this is a row of messages in which calls or results stand as text."""
    entries = _entries(head.get("messages")) if isinstance(head, dict) and not head.get("tools") else None
    return entries is not None and any(map(_tells, entries))


def load(path: Path) -> Iterator[Conversation]:
    """Yield one conversation a row of a .json, .jsonl or .parquet file, or of a folder of them.

    Raises:
        WorkloadError: a file that can't be read, is not of this format, or holds something unknown.
    """
    for place, row in rows(path, columns=COLUMNS):
        yield _conversation(place, row)


def _conversation(place: str, row: Mapping[str, Any]) -> Conversation:
    entries = _entries(row.get("messages"))
    if entries is None:
        raise WorkloadError(f"{place}: not rows of messages but {looks_like(row)}; choose the format that fits")
    losses: Counter[str] = Counter()
    messages = history(entries, place, losses)
    run = row.get("traj_id") or row.get("id") or row.get("instance_id")
    return Conversation(
        conversation_id=str(run or place),
        source=SOURCE,
        task_id=str(row.get("instance_id") or row.get("source") or run or place),
        messages=tuple(messages),
        losses=+losses,
    )


def _entries(value: Any) -> list[Any] | None:
    """Return the messages; the data sets on the hub store some lists as JSON text."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, list) or not all(isinstance(entry, dict) and "role" in entry for entry in value):
        return None
    return value


def _tells(entry: Mapping[str, Any]) -> bool:
    if entry["role"] == "assistant":
        return CALL in _text(entry)
    return "tool_call_ids" in entry or (entry["role"] == "user" and _text(entry).startswith(RESULTS))


def _text(entry: Mapping[str, Any]) -> str:
    content = entry.get("content")
    if isinstance(content, list):
        content = next((part.get("text") for part in content if isinstance(part, dict)), None)
    return content if isinstance(content, str) else ""
