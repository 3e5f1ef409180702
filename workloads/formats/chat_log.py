"""OpenAI chat logs as JSON objects, in JSON Lines or any container of rows. A row is one of two things.

A **call**, as a capture proxy writes it, one line a request in the order in which the answers ended::

    {"session_id": "…",        optional: calls of different sessions are never one conversation
     "time_s": 12.5,           seconds since any fixed moment, when the request was sent
     "request": {…},           the body that was sent, with its messages and tools
     "response": {…} or "…",   the body that came back: a completion, a message, or the text of the event stream
     "duration_s": 3.1,        from request to the end of the answer
     "ttft_s": 0.4}            optional, not used

``response`` is null when nothing came back, ``{"error": …}`` when the server refused. Only ``request`` and
``response`` are required. Calls are put together to conversations by their content.

A **whole conversation**: ``{"messages": […], "tools": […]}``, where the model wrote every assistant message.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workloads.conversation import Conversation
from workloads.formats.calls import Call, CallLog
from workloads.formats.chat import list_of
from workloads.formats.containers import rows
from workloads.formats.exchange import call_of, reasons
from workloads.formats.openai_message import message_of, optional_seconds, optional_text, read, schemas_of
from workloads.formats.openhands import NO_TOOLS
from workloads.formats.pairing import pair_results
from workloads.formats.read_message import PromptReader
from workloads.formats.recognise import looks_like
from workloads.session import WorkloadError

SOURCE = "chat_log"
CALL_KEYS = {"request", "response"}
# What a row that holds a whole conversation may have; data sets of agent runs have columns of their own beside these.
CONVERSATION_KEYS = {
    "messages",
    "tools",
    "functions",
    "parallel_tool_calls",
    "model",
    "id",
    "session_id",
    "task_id",
    "metadata",
}


def matches(head: Any) -> bool:
    """Say whether a file that begins with this row, or this list of rows, is a chat log."""
    row = head[0] if isinstance(head, list) and head else head
    if not isinstance(row, dict):
        return False
    if row.keys() >= CALL_KEYS:
        return isinstance(row["request"], dict) and ("messages" in row["request"] or "prompt" in row["request"])
    messages = row.get("messages")
    return (
        row.keys() <= CONVERSATION_KEYS
        and isinstance(messages, list)
        and bool(messages)
        and isinstance(messages[0], dict)
        and "role" in messages[0]
    )


def load(path: Path) -> Iterator[Conversation]:
    """Yield whole conversations as they come, then those put together from calls.

    Raises:
        WorkloadError: a file that can't be read, is not of this format, holds something unknown, or not one answer.
    """
    general: Counter[str] = Counter()
    log = CallLog(SOURCE)
    reader = PromptReader(read)
    found = False
    for place, row in rows(path):
        if isinstance(row.get("request"), dict) and "response" in row:
            call = _call(place, row, path, general, reader)
            if call is not None:
                log.add(call)
        elif isinstance(row.get("messages"), list):
            found = True
            yield _conversation(place, row)
        else:
            raise WorkloadError(
                f"{place}: not a row of a chat log but {looks_like(row)}; choose the format that fits"
            )
    for conversation in log.conversations(general):
        found = True
        yield conversation
    if not found:
        raise WorkloadError(f"{path}: holds no answered call ({reasons(general)}); record it again")


def _call(place: str, row: Mapping[str, Any], path: Path, general: Counter[str], reader: PromptReader) -> Call | None:
    return call_of(
        row["request"],
        row["response"],
        place,
        general,
        reader=reader,
        group=optional_text(row.get("session_id"), f"{place}, session_id") or path.stem,
        sent_s=optional_seconds(row.get("time_s"), f"{place}, time_s"),
        duration_s=optional_seconds(row.get("duration_s"), f"{place}, duration_s"),
    )


def _conversation(place: str, row: Mapping[str, Any]) -> Conversation:
    losses: Counter[str] = Counter()
    messages = [
        message_of(entry, f"{place}, message {number}", losses, answer=True)
        for number, entry in enumerate(list_of(row["messages"], place, "messages"), start=1)
    ]
    tools = schemas_of(row.get("tools") or row.get("functions"), place)
    losses[NO_TOOLS] += not tools and any(message.tool_calls for message in messages)
    return Conversation(
        conversation_id=str(row.get("session_id") or row.get("id") or place),
        source=SOURCE,
        task_id=optional_text(row.get("task_id"), f"{place}, task_id"),
        messages=tuple(pair_results(messages, losses)),
        tools=tools,
        losses=+losses,
    )
