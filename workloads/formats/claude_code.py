"""Claude Code sessions: JSON Lines of records, or their export ``{"loglines": [...]}``.

Every content block of a model's message is a record of its own; records with one ``message.id`` are one turn, even
where results of its first calls lie between them. These logs are append-only notes, not requests: a damaged line is
left out and counted, what the user rewound is dropped, and a compacted session goes on as a new one.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workloads.conversation import Conversation
from workloads.formats.claude_code_thread import Thread
from workloads.formats.containers import read_text
from workloads.formats.folders import files_below
from workloads.session import WorkloadError

ENDINGS = (".jsonl", ".json")
TALK = ("user", "assistant")
KEYS = frozenset({"sessionId", "parentUuid", "leafUuid", "snapshot"})
"""One of these is in every record, whatever its type."""

MALFORMED = "lines that are no record of Claude Code, left out"
NO_MESSAGE = "records that hold no message (summaries, system notes, snapshots)"
REPEATED = "records that repeat an earlier one, left out"
COMPACTED = "sessions that were compacted: what came after goes on as a session of its own"


def matches(head: Any) -> bool:
    """Whether this is a record of a session, or the export of one."""
    if not isinstance(head, dict):
        return False
    lines = head.get("loglines")
    if isinstance(lines, list):
        return any(isinstance(line, dict) and _is_talk(line) for line in lines)
    return isinstance(head.get("type"), str) and not KEYS.isdisjoint(head)


def load(path: Path) -> Iterator[Conversation]:
    """Yield a conversation for each session (and each sub-agent and compacted part) of a file or of all files below.

    Raises:
        WorkloadError: a file that can't be read or holds no message of a session, or a field of the wrong type.
    """
    for file in files_below(path, *ENDINGS):
        yield from _of_file(file)


def _of_file(file: Path) -> Iterator[Conversation]:
    losses: Counter[str] = Counter()
    threads: dict[str, Thread] = {}
    sidechains: dict[str, str] = {}
    finished: list[Thread] = []
    seen: set[bytes] = set()
    session = file.name.split(".")[0]
    for place, record in _records(file, losses):
        if not _is_talk(record):
            is_note = isinstance(record.get("type"), str) and record["type"] not in TALK
            losses[NO_MESSAGE if is_note else MALFORMED] += 1
            continue
        if isinstance(record.get("uuid"), str):
            own = _digest(record)
            if own in seen:
                losses[REPEATED] += 1
                continue
            seen.add(own)
        if isinstance(record.get("sessionId"), str):
            session = record["sessionId"]
        name = _thread_name(session, record, sidechains)
        thread = threads.setdefault(name, Thread(name=name, session=session))
        if record.get("isCompactSummary") and thread.messages:
            losses[COMPACTED] += 1
            finished.append(thread)
            thread = threads[name] = Thread(name=name, session=session, part=thread.part + 1)
        thread.add(place, record)
    found = [*finished, *threads.values()]
    if not found:
        raise WorkloadError(f"{file}: no message of a Claude Code session in it; choose the format that fits")
    for number, thread in enumerate(found):
        yield thread.conversation({} if number else +losses)


def _records(file: Path, losses: Counter[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is an object; the first line decides whether the file is an export or JSON Lines."""
    text = read_text(file)
    if not text.strip():
        raise WorkloadError(f"{file}: the file is empty; record or copy it again")
    lines = _loglines(text)
    if lines is None:
        lines = [_parsed(line) for line in text.split("\n") if line.strip()]
        if not any(isinstance(line, dict) for line in lines):
            raise WorkloadError(
                f"{file}: no line is a JSON object, so this is no Claude Code session; check the file"
            )
    for number, line in enumerate(lines, start=1):
        if isinstance(line, dict):
            yield f"{file}, record {number}", line
        else:
            losses[MALFORMED] += 1


def _loglines(text: str) -> list[Any] | None:
    document = _parsed(text) if text.lstrip().startswith("{") and '"loglines"' in text[:200] else None
    lines = document.get("loglines") if isinstance(document, dict) else None
    return lines if isinstance(lines, list) else None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # also numbers of more digits than Python takes
        return None


def _is_talk(record: Mapping[str, Any]) -> bool:
    message = record.get("message")
    return record.get("type") in TALK and isinstance(message, dict) and _has_content(message.get("content"))


def _has_content(content: Any) -> bool:
    return isinstance(content, str) or (isinstance(content, list) and any(isinstance(part, dict) for part in content))


def _digest(record: Mapping[str, Any]) -> bytes:
    said = json.dumps([record["uuid"], record["message"]], sort_keys=True)
    return hashlib.blake2b(said.encode(), digest_size=16).digest()


def _thread_name(session: str, record: Mapping[str, Any], sidechains: dict[str, str]) -> str:
    """Name the session, or the sub-agent in it; older logs tell sub-agents apart by the chain of parents only."""
    if not record.get("isSidechain"):
        return session
    if isinstance(record.get("agentId"), str):
        return f"{session}/{record['agentId']}"
    uuid, parent = str(record.get("uuid")), str(record.get("parentUuid"))
    sidechains[uuid] = sidechains.get(parent, uuid)
    return f"{session}/{sidechains[uuid]}"
