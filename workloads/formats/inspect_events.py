"""What the events of an Inspect sample tell about its messages, with attachments and pools put back."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workloads.conversation import Message
from workloads.formats.chat import list_of
from workloads.formats.openai_message import optional_seconds, schemas_of
from workloads.formats.times import time_s

ATTACHMENT = "attachment://"

MISSING = "attachments that the log does not hold, left as their names"
OTHER_TOOLS = "turns that saw other tools than the first turn; the replay shows the first's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is known of a model's message beside itself."""

    time_s: float | None = None
    latency_s: float | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    """The argument text of each call id, as the model wrote it."""
    tools: Any = None


UNKNOWN = Answer()


class Events:
    """The events of one sample."""

    def __init__(self, place: str, sample: Mapping[str, Any], losses: Counter[str]) -> None:
        """Read the sample's events.

        Raises:
            WorkloadError: a field of the wrong type.
        """
        self._place = place
        self._losses = losses
        attachments = sample.get("attachments")
        self._attachments = attachments if isinstance(attachments, dict) else {}
        transcript = sample.get("transcript")  # of logs before November 2024
        holder = transcript if "events" not in sample and isinstance(transcript, dict) else sample
        events = [one for one in list_of(holder.get("events"), place, "events") if isinstance(one, dict)]
        self._models = [one for one in events if one.get("event") == "model"]
        self._pool = _pool(sample)
        self._answers = self._read_answers()
        self._seen_tools: list[Any] = []
        self.results_s = self._result_times(events)

    def resolved(self, value: Any) -> Any:
        """Return a JSON value with every attachment in the place of its name."""
        if isinstance(value, dict):
            return {key: self.resolved(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self.resolved(one) for one in value]
        if not isinstance(value, str) or not value.startswith(ATTACHMENT):
            return value
        text = self._attachments.get(value.removeprefix(ATTACHMENT))
        if not isinstance(text, str):
            self._losses[MISSING] += 1
            return value
        return text

    def last_messages(self) -> list[Any]:
        """Return the messages of the last model event: its input (the pool's, where it refers to that) and output."""
        if not self._models:
            return []
        last = self._models[-1]
        entries = list_of(last.get("input"), self._place, "input")
        refs = list_of(last.get("input_refs"), self._place, "input_refs")
        entries = [*entries, *(one for ref in refs for one in self._pooled(ref))]
        output = _output(last)
        return [self.resolved(one) for one in ([*entries, output] if output else entries)]

    def answer(self, entry: Mapping[str, Any]) -> Answer:
        """Return what the events know of a model's message, told by its id."""
        message_id = entry.get("id")
        answer = self._answers.get(message_id, UNKNOWN) if isinstance(message_id, str) else UNKNOWN
        if answer is not UNKNOWN:
            self._seen_tools.append(answer.tools)
        return answer

    def tools(self, messages: Iterable[Message]) -> tuple[Mapping[str, Any], ...]:
        """Return the tool schemas of the first answer that was asked for; turns that saw others are counted.

        Raises:
            WorkloadError: schemas of another form.
        """
        if not any(message.origin == "model" for message in messages):
            return ()
        seen = self._seen_tools or [one.get("tools") for one in self._models[:1]]
        self._losses[OTHER_TOOLS] += sum(tools != seen[0] for tools in seen)
        return schemas_of(self.resolved(seen[0]), f"{self._place}, tools") if seen else ()

    def _pooled(self, ref: Any) -> list[Any]:
        if not isinstance(ref, list) or len(ref) != 2 or not all(isinstance(end, int) for end in ref):
            return []
        return self._pool[ref[0] : ref[1]]

    def _read_answers(self) -> dict[str, Answer]:
        answers = {}
        for event in self._models:
            output = _output(event)
            if output is None or not isinstance(output.get("id"), str):
                continue
            completion = event.get("output")
            seconds = event.get("working_time")
            if seconds is None and isinstance(completion, dict):
                seconds = completion.get("time")
            answers[output["id"]] = Answer(
                time_s=time_s(event.get("completed"), f"{self._place}, event completed"),
                latency_s=optional_seconds(seconds, f"{self._place}, event working_time"),
                arguments=_written_arguments(event.get("call"), self.resolved),
                tools=event.get("tools"),
            )
        return answers

    def _result_times(self, events: list[dict[str, Any]]) -> dict[str, float | None]:
        return {
            event["id"]: time_s(event.get("completed"), f"{self._place}, event completed")
            for event in events
            if event.get("event") == "tool" and isinstance(event.get("id"), str)
        }


def _pool(sample: Mapping[str, Any]) -> list[Any]:
    """Return the messages that events refer to by number: ``message_pool``, later ``events_data.messages``."""
    data = sample.get("events_data")
    pool = data.get("messages") if isinstance(data, dict) else sample.get("message_pool")
    return pool if isinstance(pool, list) else []


def _output(event: Mapping[str, Any]) -> dict[str, Any] | None:
    message = _first_message(event.get("output"))
    return message if message is None or "role" in message else {**message, "role": "assistant"}


def _first_message(completion: Any) -> dict[str, Any] | None:
    choices = completion.get("choices") if isinstance(completion, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    return message if isinstance(message, dict) else None


def _written_arguments(call: Any, resolved: Any) -> dict[str, str]:
    """Return the argument texts of a raw response in OpenAI's form, by call id; none for other services."""
    message = _first_message(call.get("response")) if isinstance(call, dict) else None
    calls = message.get("tool_calls") if message else None
    found = {}
    for one in calls if isinstance(calls, list) else []:
        function = one.get("function") if isinstance(one, dict) else None
        text = resolved(function.get("arguments")) if isinstance(function, dict) else None
        if isinstance(one.get("id") if isinstance(one, dict) else None, str) and isinstance(text, str):
            found[one["id"]] = text
    return found
