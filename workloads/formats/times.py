"""Moments as recordings write them."""

from datetime import UTC, datetime
from typing import Any

from workloads.formats.openai_message import optional_seconds
from workloads.session import WorkloadError


def time_s(stamp: Any, place: str) -> float | None:
    """Return seconds since 1970 of an ISO time or of a number of seconds; None for null.

    A time without a zone is read as UTC: only differences within one recording count.

    Raises:
        WorkloadError: a value that is no time.
    """
    if stamp is None or isinstance(stamp, int | float):
        return optional_seconds(stamp, f"{place}, timestamp")
    try:
        time = datetime.fromisoformat(stamp)
    except (TypeError, ValueError) as error:
        raise WorkloadError(f"{place}: timestamp {stamp!r:.40} is no ISO time; fix or remove it") from error
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
