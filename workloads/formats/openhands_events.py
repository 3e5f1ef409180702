"""OpenHands event streams: evaluation and resolver ``output.jsonl``, saved trajectories, folders of ``<id>.json``.

A model response stands on every action and observation that came of it (``tool_call_metadata.model_response``): it is
one turn, told by its id. Events of older versions have no metadata; their turns are rebuilt as the text that CodeAct
sent then (`workloads.formats.openhands_wording`).
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from workloads.conversation import Conversation, Message
from workloads.formats import openhands_wording as wording
from workloads.formats.chat import NOT_TEXT, list_of, text_of
from workloads.formats.containers import files, rows
from workloads.formats.openai_message import message_of, optional_seconds, optional_text, schemas_of
from workloads.formats.openhands import NO_TOOLS
from workloads.formats.pairing import pair_results
from workloads.formats.recognise import looks_like
from workloads.formats.times import time_s
from workloads.session import WorkloadError

SOURCE = "openhands_events"
EVENT_FILE = re.compile(r"\d+\.json")

NO_SYSTEM = "sessions without their system prompt"
RECALLED = "recalled context (workspace, microagents) that the model saw worded in a way not recorded"
NOT_SEEN = "events that the model never saw (states, other sources' actions)"
CONDENSED = "condensations: the model saw a shortened history from there on, the replay the whole one"
NO_EVENT = "model responses in the metrics that left no event (malformed calls, retries)"
TOLD_BY_WAITING = "messages without a source, their author told by wait_for_response"
UNSEEN_OBSERVATIONS = ("agent_state_changed", "null", "recall_failure")


def matches(head: Any) -> bool:
    """Whether this is an OpenHands output row, a list of events or one event."""
    if isinstance(head, list) and head:
        head = head[0]
    if not isinstance(head, dict):
        return False
    history = head.get("history")
    if isinstance(history, list):
        return not history or _is_event(history[0])
    return _is_event(head)


def load(path: Path) -> Iterator[Conversation]:
    """Yield one conversation an output row, or one for a list (or folder) of events.

    Raises:
        WorkloadError: a file that can't be read, is not of this format, or holds something unknown.
    """
    if path.is_dir() and (stream := _event_files(path)):
        events = [(str(file), event) for file in stream for _, event in rows(file)]
        yield _Run(place=str(path), name=path.name, row={}).conversation(events)
        return
    for file in files(path) if path.exists() else [path]:
        yield from _of_file(file)


def _event_files(path: Path) -> list[Path]:
    folder = path / "events" if (path / "events").is_dir() else path
    found = [file for file in folder.iterdir() if EVENT_FILE.fullmatch(file.name)]
    return sorted(found, key=lambda file: int(file.stem))


def _of_file(file: Path) -> Iterator[Conversation]:
    found = rows(file)
    first = next(found, None)
    if first is None:
        return
    if not isinstance(first[1].get("history"), list) and _is_event(first[1]):
        yield _Run(place=str(file), name=file.stem, row={}).conversation(list(chain([first], found)))
        return
    for place, row in chain([first], found):
        history = row.get("history")
        if not isinstance(history, list):
            raise WorkloadError(f"{place}: not an OpenHands run but {looks_like(row)}; choose the format that fits")
        events = [(f"{place}, event {number}", event) for number, event in enumerate(history, start=1)]
        yield _Run(place=place, name=file.stem, row=row).conversation(events)


def _is_event(value: Any) -> bool:
    return isinstance(value, dict) and (
        isinstance(value.get("action"), str) or isinstance(value.get("observation"), str)
    )


@dataclass(slots=True, kw_only=True)
class _Run:
    """One run while its events are read."""

    place: str
    name: str
    row: Mapping[str, Any]
    losses: Counter[str] = field(default_factory=Counter)
    messages: list[Message] = field(default_factory=list)
    tools: tuple[Mapping[str, Any], ...] = ()
    latencies_s: dict[str, float | None] = field(default_factory=dict)
    responses: set[str] = field(default_factory=set)

    def conversation(self, events: list[tuple[str, Any]]) -> Conversation:
        self.latencies_s = self._latencies()
        for place, event in events:
            if not _is_event(event):
                raise WorkloadError(f"{place}: neither an action nor an observation but {looks_like(event)}")
            self._read(place, event)
        self.losses[NO_EVENT] += len(self.latencies_s.keys() - self.responses)
        self.losses[NO_SYSTEM] += not any(message.role == "system" for message in self.messages)
        self.losses[NO_TOOLS] += not self.tools and any(message.tool_calls for message in self.messages)
        task = self._task()
        return Conversation(
            conversation_id=task or self.name,
            source=SOURCE,
            task_id=task,
            messages=tuple(pair_results(self.messages, self.losses)),
            tools=self.tools,
            losses=+self.losses,
        )

    def _task(self) -> str | None:
        instance = self.row.get("instance_id")
        issue = self.row.get("issue")
        if instance is None and isinstance(issue, dict):
            return f"{issue.get('owner')}/{issue.get('repo')}#{issue.get('number')}"
        return None if instance is None else str(instance)

    def _latencies(self) -> dict[str, float | None]:
        """Return the measured seconds of each response; the resolver's metrics have none."""
        metrics = self.row.get("metrics")
        place = f"{self.place}, metrics.response_latencies"
        found: dict[str, float | None] = {}
        for one in list_of(metrics.get("response_latencies") if isinstance(metrics, dict) else None, place, "it"):
            if isinstance(one, dict) and isinstance(one.get("response_id"), str) and one["response_id"]:
                found[one["response_id"]] = optional_seconds(one.get("latency"), f"{place}, latency")
        return found

    def _read(self, place: str, event: Mapping[str, Any]) -> None:
        found = event.get("tool_call_metadata")
        metadata = found if isinstance(found, dict) else {}
        response = metadata.get("model_response")
        if isinstance(response, dict):
            self._respond(place, event, response, metadata.get("tool_call_id"))
        if isinstance(event.get("observation"), str):
            self._observe(place, event, metadata)
        elif not isinstance(response, dict):
            self._act(place, event)

    def _respond(self, place: str, event: Mapping[str, Any], response: Mapping[str, Any], call_id: Any) -> None:
        """Add a model response the first time that it is met."""
        response_id = optional_text(response.get("id"), f"{place}, model_response.id") or f"call {call_id}"
        if response_id in self.responses:
            return
        self.responses.add(response_id)
        choices = response.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(message, dict):
            raise WorkloadError(f"{place}: model_response.choices holds no message; fix or delete this session")
        answer = message_of({**message, "role": "assistant"}, place, self.losses, answer=True)
        at, latency_s = time_s(event.get("timestamp"), place), self.latencies_s.get(response_id)
        self.messages.append(replace(answer, time_s=at, latency_s=latency_s))

    def _observe(self, place: str, event: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        kind = event["observation"]
        if kind == "recall":
            self.losses[RECALLED] += 1
            return
        if kind in UNSEEN_OBSERVATIONS:
            self.losses[NOT_SEEN] += 1
            return
        content = text_of(event.get("content"), place, self.losses)
        self.messages.append(
            Message(
                role="tool" if metadata else "user",
                origin="given",
                carries_result=not metadata,
                content=wording.observation(event, content, called=bool(metadata)),
                tool_call_id=optional_text(metadata.get("tool_call_id"), f"{place}, tool_call_id"),
                name=optional_text(metadata.get("function_name"), f"{place}, function_name"),
                time_s=time_s(event.get("timestamp"), place),
            )
        )

    def _act(self, place: str, event: Mapping[str, Any]) -> None:
        """Add an action that no recorded response stands behind."""
        kind = event["action"]
        args = event["args"] if isinstance(event.get("args"), dict) else event
        if kind == "system":
            self._add_system(place, args)
        elif kind == "message":
            self._add_message(place, event, args)
        elif kind == "condensation":
            self.losses[CONDENSED] += 1
        elif kind in wording.ACTIONS and event.get("source", "agent") in ("agent", "user"):
            by_user = event.get("source") == "user"
            text = wording.user_action(kind, args) if by_user else wording.action(kind, args)
            self.losses[wording.REBUILT_ACTION] += 1
            self._add(place, event, text, by_model=not by_user)
        else:
            self.losses[NOT_SEEN] += kind != "recall"

    def _add_system(self, place: str, args: Mapping[str, Any]) -> None:
        content = text_of(args.get("content"), place, self.losses)
        self.messages.append(Message(role="system", origin="given", content=content))
        self.tools = schemas_of(args.get("tools"), f"{place}, args.tools")

    def _add_message(self, place: str, event: Mapping[str, Any], args: Mapping[str, Any]) -> None:
        source = event.get("source")
        if source is None:
            self.losses[TOLD_BY_WAITING] += 1
            source = "agent" if args.get("wait_for_response") and self.messages else "user"
        for key in ("image_urls", "images_urls"):
            self.losses[NOT_TEXT] += len(list_of(args.get(key), place, key))
        self._add(place, event, text_of(args.get("content"), place, self.losses), by_model=source == "agent")

    def _add(self, place: str, event: Mapping[str, Any], text: str, *, by_model: bool) -> None:
        self.messages.append(
            Message(
                role="assistant" if by_model else "user",
                origin="model" if by_model else "given",
                content=text,
                time_s=time_s(event.get("timestamp"), place),
            )
        )
