"""OpenTelemetry GenAI spans: traces as ``{trace_id, spans: […]}`` or as OTLP's JSON (``resourceSpans``).

Parents are mostly absent and spans overlap, so which call continues which is told by content.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workloads.conversation import Conversation
from workloads.formats.calls import Call, CallLog
from workloads.formats.chat import list_of
from workloads.formats.completion import FAILED, NO_ANSWER
from workloads.formats.containers import rows
from workloads.formats.exchange import reasons
from workloads.formats.genai_messages import json_value, messages, system_message
from workloads.formats.openai_message import read, schemas_of
from workloads.formats.otel_span import Span, otlp_spans, plain_span
from workloads.formats.read_message import Read
from workloads.formats.recognise import looks_like
from workloads.session import WorkloadError

SOURCE = "otel"
INPUT, OUTPUT, OUTPUT_TEXT = "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.output.text"
INSTRUCTIONS, TOOLS = "gen_ai.system_instructions", "gen_ai.tool.definitions"
OPERATION = "gen_ai.operation.name"
MODEL_OPERATIONS = {"chat", "text_completion", "generate_content"}
SESSION_KEYS = ("gen_ai.conversation.id", "session.id", "exgentic.session.id")

OTHER_SPAN = "spans that are no model calls"
NO_MESSAGES = "model calls without messages: record with OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true"


def matches(head: Any) -> bool:
    """Say whether a file that begins with this row, or this list of rows, holds traces."""
    row = head[0] if isinstance(head, list) and head else head
    if not isinstance(row, dict):
        return False
    if isinstance(row.get("resourceSpans"), list):
        return True
    spans = row.get("spans")
    return isinstance(spans, list) and all(isinstance(span, dict) and "attributes" in span for span in spans[:1])


def load(path: Path) -> Iterator[Conversation]:
    """Yield the conversations of all traces of a file or folder; those of two sessions or traces are never one.

    Raises:
        WorkloadError: a file that can't be read, is not of this format, holds something unknown, or not one answer.
    """
    general: Counter[str] = Counter()
    log = CallLog(SOURCE)
    found = 0
    for place, row in rows(path):
        for span in sorted(_spans(place, row), key=lambda span: span.start_s):
            call = _call(span, general)
            if call is not None:
                found += 1
                log.add(call)
    if not found:
        raise WorkloadError(f"{path}: holds no answered model call ({reasons(general)}); record it again")
    yield from log.conversations(general)


def _spans(place: str, row: Mapping[str, Any]) -> list[Span]:
    if "resourceSpans" in row:
        return list(otlp_spans(row["resourceSpans"], place))
    if "spans" not in row:
        raise WorkloadError(f"{place}: not a trace but {looks_like(row)}; choose the format that fits")
    return [
        plain_span(span, f"{place}, span {number}", row.get("trace_id"))
        for number, span in enumerate(list_of(row["spans"], place, "spans"), start=1)
    ]


def _call(span: Span, general: Counter[str]) -> Call | None:
    attributes = span.attributes
    if INPUT not in attributes:
        general[NO_MESSAGES if attributes.get(OPERATION) in MODEL_OPERATIONS else OTHER_SPAN] += 1
        return None
    answers = _answers(span)
    if not answers:
        general[FAILED if span.failed else NO_ANSWER] += 1
        return None
    system = system_message(attributes.get(INSTRUCTIONS), f"{span.place}, {INSTRUCTIONS}")
    tools = json_value(attributes.get(TOOLS), f"{span.place}, {TOOLS}")
    session = next((attributes[key] for key in SESSION_KEYS if isinstance(attributes.get(key), str)), None)
    return Call(
        group=session or span.trace_id,
        prompt=[*system, *messages(attributes[INPUT], f"{span.place}, {INPUT}")],
        answers=answers,
        tools=schemas_of(tools, f"{span.place}, {TOOLS}"),
        sent_s=span.start_s,
        duration_s=None if span.end_s is None or span.end_s < span.start_s else span.end_s - span.start_s,
    )


def _answers(span: Span) -> list[Read]:
    place = f"{span.place}, {OUTPUT}"
    if span.attributes.get(OUTPUT) is not None:
        return messages(span.attributes[OUTPUT], place, answer=True)
    text = span.attributes.get(OUTPUT_TEXT)
    if not isinstance(text, str) or not text:
        return []
    return [read({"role": "assistant", "content": text}, place, answer=True)]
