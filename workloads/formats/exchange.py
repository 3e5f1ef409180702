"""A chat completions request and what came back for it, as a `Call`."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from workloads.formats.calls import Call
from workloads.formats.chat import list_of
from workloads.formats.completion import answers
from workloads.formats.openai_message import read, schemas_of
from workloads.formats.read_message import PromptReader

TEXT_COMPLETION = "calls of text completions, which have no messages to render"
NO_PROMPT = "calls without messages"


def call_of(
    request: Mapping[str, Any],
    response: Any,
    place: str,
    general: Counter[str],
    *,
    reader: PromptReader,
    group: str,
    sent_s: float | None = None,
    duration_s: float | None = None,
) -> Call | None:
    """Return the call, or None, and why counted in ``general``, where there is nothing to replay.

    Args:
        request: the body that was sent.
        response: the body that came back, parsed or as text (`workloads.formats.completion`).

    Raises:
        WorkloadError: a message or a field of a wrong type.
    """
    messages = list_of(request.get("messages"), f"{place}, request", "messages")
    if not messages:
        general[TEXT_COMPLETION if request.get("prompt") else NO_PROMPT] += 1
        return None
    found = answers(response, general)
    if not found:
        return None
    return Call(
        group=group,
        prompt=reader.prompt(messages, f"{place}, request"),
        answers=[
            read(one | {"role": "assistant"}, f"{place}, response, choice {number}", answer=True)
            for number, one in enumerate(found, start=1)
        ],
        tools=schemas_of(request.get("tools") or request.get("functions"), f"{place}, request"),
        sent_s=sent_s,
        duration_s=duration_s,
    )


def reasons(losses: Mapping[str, int]) -> str:
    """Say in one line what was lost."""
    return "; ".join(f"{count} {reason}" for reason, count in losses.items() if count) or "no call at all"
