"""A span as the OpenTelemetry formats write it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from workloads.formats.chat import list_of
from workloads.formats.recognise import looks_like
from workloads.formats.times import time_s
from workloads.session import WorkloadError

ERROR_CODES = (2, "2", "ERROR", "STATUS_CODE_ERROR")
VALUE_KEYS = ("stringValue", "boolValue", "doubleValue")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    place: str
    trace_id: str
    start_s: float
    """Seconds since 1970; a time without a zone counts as UTC."""
    end_s: float | None
    attributes: Mapping[str, Any]
    failed: bool


def plain_span(value: Any, place: str, trace_id: Any) -> Span:
    """Return a span whose attributes are an object and whose times are ISO texts or numbers.

    Raises:
        WorkloadError: no attributes, or no start time.
    """
    if not isinstance(value, dict) or not isinstance(value.get("attributes"), dict):
        raise WorkloadError(f"{place}: expected a span with attributes, found {looks_like(value)}")
    status = value.get("status")
    return Span(
        place=place,
        trace_id=str(value.get("trace_id") or trace_id or place),
        start_s=_required_s(value.get("start_time"), f"{place}, start_time"),
        end_s=time_s(value.get("end_time"), f"{place}, end_time"),
        attributes=value["attributes"],
        failed=isinstance(status, dict) and status.get("code") in ERROR_CODES,
    )


def otlp_spans(resources: Any, place: str) -> Iterator[Span]:
    """Yield the spans of ``resourceSpans`` (OTLP 1.x, JSON encoding).

    Raises:
        WorkloadError: as `plain_span`, and where the nesting is another.
    """
    for resource in list_of(resources, place, "resourceSpans"):
        for scope in list_of(_get(resource, "scopeSpans", place), place, "scopeSpans"):
            for number, span in enumerate(list_of(_get(scope, "spans", place), place, "spans"), start=1):
                at = f"{place}, span {number}"
                attributes = list_of(_get(span, "attributes", at), at, "attributes")
                status = span.get("status")
                yield Span(
                    place=at,
                    trace_id=str(span.get("traceId") or place),
                    start_s=_required_s(_nanoseconds(span.get("startTimeUnixNano")), f"{at}, startTimeUnixNano"),
                    end_s=time_s(_nanoseconds(span.get("endTimeUnixNano")), f"{at}, endTimeUnixNano"),
                    attributes={
                        str(one["key"]): _value(one.get("value"))
                        for one in attributes
                        if isinstance(one, dict) and "key" in one
                    },
                    failed=isinstance(status, dict) and status.get("code") in ERROR_CODES,
                )


def _get(value: Any, key: str, place: str) -> Any:
    if not isinstance(value, dict):
        raise WorkloadError(f"{place}: expected an object with {key}, found {looks_like(value)}")
    return value.get(key)


def _value(value: Any) -> Any:
    """An OTLP ``AnyValue`` as plain JSON."""
    if not isinstance(value, dict):
        return None
    if "arrayValue" in value:
        inside = value["arrayValue"].get("values") if isinstance(value["arrayValue"], dict) else None
        return [_value(one) for one in inside] if isinstance(inside, list) else []
    if "kvlistValue" in value:
        inside = value["kvlistValue"].get("values") if isinstance(value["kvlistValue"], dict) else None
        pairs = [one for one in inside if isinstance(one, dict)] if isinstance(inside, list) else []
        return {str(one.get("key")): _value(one.get("value")) for one in pairs}
    return next((value[key] for key in VALUE_KEYS if key in value), value.get("intValue"))


def _nanoseconds(value: Any) -> Any:
    """Seconds of a count of nanoseconds, which OTLP writes as text; anything else stays for `time_s` to refuse."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 25:
        return int(value) / 1e9
    return value / 1e9 if isinstance(value, int) and not isinstance(value, bool) and value < 1 << 64 else value


def _required_s(value: Any, place: str) -> float:
    seconds = time_s(value, place)
    if seconds is None:
        raise WorkloadError(f"{place}: is missing, so the order of the calls is unknown; record it again")
    return seconds
