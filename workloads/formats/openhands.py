"""OpenHands runs as chat completions: SWE-Gym rows (``messages``) and SWE-rebench rows (``trajectory``).

Both come from Hugging Face data sets, where every struct is padded with nulls to the union of all fields.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workloads.conversation import Conversation, Message, ToolCall
from workloads.formats.chat import list_of, role_of, text_of
from workloads.formats.containers import rows
from workloads.formats.pairing import pair_results
from workloads.formats.recognise import looks_like
from workloads.session import WorkloadError

SOURCE = "openhands"
COLUMNS = ("trajectory_id", "instance_id", "run_id", "trajectory", "messages", "tools")
# Some re-exports number the runs of one task: python__mypy-15976_0.
NUMBERED_RUN = re.compile(r"(?P<task>.+-\d+)_\d+")

NO_TOOLS = "sessions with tool calls but no tool schemas"


def matches(head: Any) -> bool:
    """Whether this is a row, or a list of rows, of messages with structured calls from a run on a task."""
    row = head[0] if isinstance(head, list) and head else head
    if not isinstance(row, dict) or row.keys().isdisjoint({"instance_id", "trajectory_id", "run_id"}):
        return False
    entries = row.get("messages", row.get("trajectory"))
    return (
        isinstance(entries, list)
        and all(map(_is_message, entries))
        and (isinstance(row.get("tools"), list) or any("tool_calls" in entry for entry in entries))
    )


def load(path: Path) -> Iterator[Conversation]:
    """Yield one conversation a row of a .json, .jsonl or .parquet file, or of a folder of them.

    Raises:
        WorkloadError: a file that can't be read, is not of this format, or holds something unknown.
    """
    for place, row in rows(path, columns=COLUMNS):
        yield _conversation(place, row)


def _conversation(place: str, row: Mapping[str, Any]) -> Conversation:
    entries = row.get("messages", row.get("trajectory"))
    tools = row.get("tools") or []
    if not isinstance(entries, list) or not isinstance(tools, list) or not all(map(_is_message, entries)):
        raise WorkloadError(f"{place}: not an OpenHands chat row but {looks_like(row)}; choose the format that fits")
    losses: Counter[str] = Counter()
    messages = [
        _message(entry, f"{place}, message {number}", losses) for number, entry in enumerate(entries, start=1)
    ]
    losses[NO_TOOLS] += not tools and any(message.tool_calls for message in messages)
    task = str(row.get("instance_id") or place)
    run = row.get("trajectory_id") or row.get("run_id")
    numbered = NUMBERED_RUN.fullmatch(task)
    return Conversation(
        conversation_id=f"{task}/{run}" if run else task,
        source=SOURCE,
        task_id=numbered["task"] if numbered else task,
        messages=tuple(pair_results(messages, losses)),
        tools=tuple(without_padding(tool) for tool in tools),
        losses=+losses,
    )


def _is_message(entry: Any) -> bool:
    return isinstance(entry, dict) and "role" in entry and "content" in entry


def without_padding(value: Any) -> Any:
    """Return a JSON value without the null fields that a columnar format adds, however deep."""
    if isinstance(value, dict):
        return {key: without_padding(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [without_padding(one) for one in value]
    return value


def _message(entry: Any, place: str, losses: Counter[str]) -> Message:
    role = role_of(entry, place)
    content = text_of(entry.get("content"), place, losses)
    if role == "tool":
        return Message(
            role="tool",
            origin="given",
            content=content,
            tool_call_id=entry.get("tool_call_id"),
            name=entry.get("name"),
        )
    if role != "assistant":
        return Message(role=role, origin="given", content=content)
    calls = list_of(entry.get("tool_calls"), place, "tool_calls")
    return Message(
        role="assistant",
        origin="model",
        content=content,
        tool_calls=tuple(_call(call, f"{place}, tool call {number}") for number, call in enumerate(calls, start=1)),
    )


def _call(call: Any, place: str) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise WorkloadError(f"{place}: has no function name; fix or delete this row")
    if not isinstance(function.get("arguments"), str):
        raise WorkloadError(f"{place}: arguments must be the raw text, found {looks_like(function.get('arguments'))}")
    return ToolCall(name=function["name"], arguments=function["arguments"], call_id=call.get("id"))
