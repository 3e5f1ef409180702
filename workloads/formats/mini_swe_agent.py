"""mini-swe-agent runs: a bare list of messages, a trajectory object (formats 1 and 1.1), or rows with ``messages``.

The first versions talk in text and put results into user messages; version 2 also calls a ``bash`` tool.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workloads.conversation import Conversation, Message
from workloads.formats.containers import values
from workloads.formats.folders import files_below
from workloads.formats.openai_message import message_of
from workloads.formats.openhands import NO_TOOLS
from workloads.formats.pairing import pair_results
from workloads.formats.recognise import looks_like
from workloads.formats.swe_agent import with_results_marked
from workloads.formats.times import time_s
from workloads.session import WorkloadError

SOURCE = "mini_swe_agent"
ENDING = ".traj.json"
FORMAT = "mini-swe-agent"
COMMANDS = ("```bash\n", "```mswea_bash_command\n")
RESULT = "<returncode>"

EXIT = "closing notes (role exit), which the model never saw"


def matches(head: Any) -> bool:
    """Whether this is a trajectory, a bare list of its messages, or a row with them."""
    if isinstance(head, list) and head and isinstance(head[0], dict) and "messages" in head[0]:
        head = head[0]
    if isinstance(head, dict):
        name = head.get("trajectory_format")
        if isinstance(name, str):
            return name.startswith(FORMAT)
        if head.get("tools"):
            return False
        head = head.get("messages")
    return isinstance(head, list) and _are_messages(head) and any(map(_tells, head))


def load(path: Path) -> Iterator[Conversation]:
    """Yield one conversation a trajectory or row.

    Args:
        path: a file, a folder with ``.traj.json`` files at any depth, or rows (JSON, JSON Lines, Parquet).

    Raises:
        WorkloadError: a file that can't be read, is not of this format, or holds something unknown.
    """
    whole_folder = path.is_dir() and any(path.rglob(f"*{ENDING}*"))
    for file in files_below(path, ENDING) if whole_folder else [path]:
        yield from _of_file(file)


def _of_file(file: Path) -> Iterator[Conversation]:
    name = file.name.split(ENDING)[0].removesuffix(".json")
    bare = []
    for place, value in values(file):
        if isinstance(value, dict) and "role" in value:
            bare.append(value)
        elif isinstance(value, dict) and _are_messages(value.get("messages")):
            yield _conversation(place, name, value, value["messages"])
        else:
            what = looks_like(value)
            raise WorkloadError(f"{place}: not a mini-swe-agent trajectory but {what}; choose the format that fits")
    if bare:
        yield _conversation(str(file), name, {}, bare)


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _tells(entry: Mapping[str, Any]) -> bool:
    role, content = entry.get("role"), entry.get("content")
    if not isinstance(content, str):
        return False
    return (role == "user" and content.startswith(RESULT)) or (
        role == "assistant" and content.endswith("```") and any(command in content for command in COMMANDS)
    )


def _conversation(place: str, name: str, row: Mapping[str, Any], entries: list[Any]) -> Conversation:
    losses: Counter[str] = Counter()
    messages: list[Message] = []
    for number, entry in enumerate(entries, start=1):
        where = f"{place}, message {number}"
        if entry.get("role") == "exit":
            losses[EXIT] += 1
            continue
        if entry.get("object") == "response" or entry.get("type") == "function_call_output":
            raise WorkloadError(
                f"{where}: an item of OpenAI's Responses interface; record with a chat completions model class"
            )
        extra = entry.get("extra")
        message = message_of(entry, where, losses, answer=True)
        at = time_s(extra.get("timestamp"), where) if isinstance(extra, dict) else None
        messages.append(replace(message, time_s=at))
    losses[NO_TOOLS] += any(message.tool_calls for message in messages)
    info = row.get("info")
    task = row.get("instance_id") or (info.get("instance_id") if isinstance(info, dict) else None)
    run = row.get("id") or task or name
    return Conversation(
        conversation_id=str(run),
        source=SOURCE,
        task_id=str(task or run),
        messages=tuple(with_results_marked(pair_results(messages, losses))),
        losses=+losses,
    )
