"""Inspect evaluation logs: ``.json`` documents and ``.eval`` archives, one conversation a sample.

The messages that a sample ends with are its conversation; the log's model events tell which tools its model saw, when
it answered and the argument text it wrote.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workloads.conversation import Conversation, Message, ToolCall
from workloads.formats.chat import list_of, role_of, text_of
from workloads.formats.containers import read_json
from workloads.formats.folders import files_below
from workloads.formats.inspect_archive import HEADER, is_archive, samples_of
from workloads.formats.inspect_events import Events
from workloads.formats.openai_message import argument_text, optional_text
from workloads.formats.openhands import NO_TOOLS
from workloads.formats.pairing import pair_results
from workloads.formats.recognise import looks_like
from workloads.session import WorkloadError

SOURCE = "inspect_log"
ENDINGS = (".eval", ".json")
ARCHIVE = "archive"

EXAMPLES = "answers that came with the sample's input, given in the prompt and not replayed"
TOOL_ERRORS = "results that are errors, whose wording for the model was not recorded"
FROM_EVENTS = "samples without messages, read from their last model event"


def matches(head: Any) -> bool:
    """Whether this is a log's document, or the members of an ``.eval`` archive (after the word ``archive``)."""
    if isinstance(head, list | tuple):
        return len(head) > 0 and head[0] == ARCHIVE and (HEADER in head or "_journal/start.json" in head)
    return isinstance(head, dict) and isinstance(head.get("eval"), dict) and ("plan" in head or "samples" in head)


def load(path: Path) -> Iterator[Conversation]:
    """Yield one conversation a sample and epoch of a log, or of every log in a folder.

    Raises:
        WorkloadError: a file that can't be read, is not of this format, or holds something unknown.
    """
    for file in files_below(path, *ENDINGS):
        if is_archive(file):
            for task, place, sample in samples_of(file):
                yield _conversation(task, place, sample)
            continue
        log = read_json(file)
        if not isinstance(log, dict) or not isinstance(log.get("eval"), dict):
            raise WorkloadError(f"{file}: not an Inspect log but {looks_like(log)}; choose the format that fits")
        task = optional_text(log["eval"].get("task"), f"{file}: eval.task") or file.stem
        samples = list_of(log.get("samples"), str(file), "samples")
        if not samples:
            raise WorkloadError(f"{file}: a log without samples (header only); use the whole log")
        for number, sample in enumerate(samples, start=1):
            yield _conversation(task, f"{file}, sample {number}", sample)


def _conversation(task: str, place: str, sample: Any) -> Conversation:
    if not isinstance(sample, dict):
        raise WorkloadError(f"{place}: expected a sample, found {looks_like(sample)}; fix or delete it")
    losses: Counter[str] = Counter()
    events = Events(place, sample, losses)
    entries = list_of(events.resolved(sample.get("messages")), place, "messages")
    if not entries and (entries := events.last_messages()):
        losses[FROM_EVENTS] += 1
    messages = [
        _message(entry, f"{place}, message {number}", events, losses) for number, entry in enumerate(entries, start=1)
    ]
    tools = events.tools(messages)
    losses[NO_TOOLS] += not tools and any(message.tool_calls for message in messages)
    name = f"{task}/{sample.get('id')}"
    return Conversation(
        conversation_id=f"{name}/{sample.get('epoch') or 1}",
        source=SOURCE,
        task_id=name,
        messages=tuple(pair_results(messages, losses)),
        tools=tools,
        losses=+losses,
    )


def _message(entry: Any, place: str, events: Events, losses: Counter[str]) -> Message:
    role = role_of(entry, place)
    content, reasoning = entry.get("content"), []
    if isinstance(content, list):
        reasoning = [part for part in content if isinstance(part, dict) and part.get("type") == "reasoning"]
        content = [part for part in content if part not in reasoning]
    text = text_of(content, place, losses)
    if role == "tool":
        return _result(entry, text, place, events, losses)
    if role != "assistant":
        return Message(role=role, origin="given", content=text)
    example = entry.get("source") == "input"
    losses[EXAMPLES] += example
    thoughts = [part["reasoning"] for part in reasoning if isinstance(part.get("reasoning"), str)]
    answer = events.answer(entry)
    calls = [
        _call(call, f"{place}, tool call {number}", answer.arguments, losses)
        for number, call in enumerate(list_of(entry.get("tool_calls"), place, "tool_calls"), start=1)
    ]
    message = Message(
        role="assistant",
        origin="given" if example else "model",
        content=text,
        reasoning="".join(thoughts) or optional_text(entry.get("reasoning"), f"{place}, reasoning") or None,
        tool_calls=tuple(calls),
    )
    return replace(message, time_s=answer.time_s, latency_s=answer.latency_s)


def _result(entry: Mapping[str, Any], text: str, place: str, events: Events, losses: Counter[str]) -> Message:
    error = entry.get("error")
    if isinstance(error, dict):
        losses[TOOL_ERRORS] += 1
        text = text or optional_text(error.get("message"), f"{place}, error.message") or ""
    call_id = optional_text(entry.get("tool_call_id"), f"{place}, tool_call_id")
    return Message(
        role="tool",
        origin="given",
        content=text,
        tool_call_id=call_id,
        name=optional_text(entry.get("function"), f"{place}, function"),
        time_s=events.results_s.get(call_id) if call_id else None,
    )


def _call(call: Any, place: str, written: Mapping[str, str], losses: Counter[str]) -> ToolCall:
    name = call.get("function") if isinstance(call, dict) else None
    if not isinstance(name, str):
        raise WorkloadError(f"{place}: has no function name; fix or delete this sample")
    call_id = optional_text(call.get("id"), f"{place}, id")
    text = written.get(call_id) if call_id else None
    if text is None:
        text = argument_text(call.get("arguments"), place, losses)
    return ToolCall(name=name, arguments=text, call_id=call_id)
