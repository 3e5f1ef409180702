"""AgentSuite's tau-bench and tau2-bench rows: ``{model_path, task_name, messages, eval_result, meta}``.

Tool results name no call, some models' files hold them as user messages, and tau2 rows hold the simulated user's own
tool calls too, which the agent never saw.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workloads.conversation import Conversation, Message, ToolCall
from workloads.formats.chat import list_of, role_of
from workloads.formats.containers import rows
from workloads.formats.openai_message import argument_text, message_of, optional_text
from workloads.formats.openhands import NO_TOOLS
from workloads.formats.pairing import UNPAIRED, pair_results
from workloads.formats.recognise import looks_like
from workloads.formats.tau2 import HIDDEN_RESULT, HIDDEN_USER
from workloads.session import WorkloadError

SOURCE = "agentsuite"
COLUMNS = ("model_path", "task_name", "messages", "meta", "eval_result")
KEYS = {"model_path", "task_name", "messages", "meta"}
# Claude's thinking models were sent this after tool results; it is no tool result.
REMINDER = "The tool has finished running."
NUMBERED_TASK = re.compile(r".*_(?P<number>\d+)")

RESULT_AS_USER = "tool results that the file holds as user messages"
NO_NAME = "calls whose function name is empty, as the model wrote them"
GREETING = "answers before the first user message, which no model wrote"
UNANSWERED = "calls without a result"


def matches(head: Any) -> bool:
    """Say whether a file that begins with this row, or this list of rows, is of this format."""
    row = head[0] if isinstance(head, list) and head else head
    return isinstance(row, dict) and row.keys() >= KEYS


def load(path: Path) -> Iterator[Conversation]:
    """Yield one conversation a row, seen as the agent's model saw it; a run that failed at once has no messages.

    Raises:
        WorkloadError: a file that can't be read, is not of this format, or holds something unknown.
    """
    for place, row in rows(path, columns=COLUMNS):
        if "messages" not in row or "task_name" not in row:
            raise WorkloadError(f"{place}: not an AgentSuite row but {looks_like(row)}; choose the format that fits")
        yield _conversation(place, row)


def _conversation(place: str, row: Mapping[str, Any]) -> Conversation:
    losses: Counter[str] = Counter()
    entries = list_of(row["messages"], place, "messages")
    seen = [_message(entry, at, losses) for entry, at in _seen_by_agent(entries, place, losses)]
    messages = pair_results(_given_greeting(seen, losses), losses)
    calls = sum(len(message.tool_calls) for message in messages)
    losses[NO_TOOLS] += calls > 0
    losses[UNANSWERED] += calls - (sum(message.role == "tool" for message in messages) - losses[UNPAIRED])
    meta = row.get("meta")
    number = str(meta.get("id")) if isinstance(meta, dict) and meta.get("id") is not None else place
    numbered = NUMBERED_TASK.fullmatch(number)
    task = f"{row['task_name']}/{numbered['number'] if numbered else number}"
    return Conversation(
        # gpt-5-nano's file names gpt-5 here.
        conversation_id=f"{row.get('model_path') or SOURCE}/{task}",
        source=SOURCE,
        task_id=task,
        messages=tuple(messages),
        losses=+losses,
    )


def _seen_by_agent(entries: list[Any], place: str, losses: Counter[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """The messages of the agent's side, each tool result with the role ``tool``."""
    open_calls, users_turn = 0, False
    for number, entry in enumerate(entries, start=1):
        at = f"{place}, message {number}"
        role = role_of(entry, at)
        calls = list_of(entry.get("tool_calls"), at, "tool_calls")
        if role == "user" and calls:
            losses[HIDDEN_USER] += 1
            open_calls, users_turn = len(calls), True
        elif role == "tool" and (entry.get("requestor") == "user" or (users_turn and open_calls)):
            losses[HIDDEN_RESULT] += 1
            open_calls -= 1
        elif role == "user" and open_calls and not users_turn and not _is_reminder(entry):
            losses[RESULT_AS_USER] += 1
            open_calls -= 1
            yield entry | {"role": "tool"}, at
        else:
            if role == "assistant":
                open_calls, users_turn = len(calls), False
            elif role == "tool":
                open_calls -= 1
            yield entry, at


def _is_reminder(entry: Mapping[str, Any]) -> bool:
    return isinstance(entry.get("content"), str) and entry["content"].startswith(REMINDER)


def _given_greeting(messages: list[Message], losses: Counter[str]) -> Iterator[Message]:
    asked = False
    for message in messages:
        asked = asked or message.role == "user"
        if message.origin == "model" and not asked:
            losses[GREETING] += 1
            message = Message(role="assistant", origin="given", content=message.content)
        yield message


def _message(entry: Mapping[str, Any], place: str, losses: Counter[str]) -> Message:
    calls = list_of(entry.get("tool_calls"), place, "tool_calls")
    plain = message_of({**entry, "tool_calls": None, "function_call": None}, place, losses, answer=True)
    if plain.role != "assistant":
        return plain
    return Message(
        role="assistant",
        origin="model",
        content=plain.content,
        reasoning=plain.reasoning,
        tool_calls=tuple(_call(call, f"{place}, tool call {number}", losses) for number, call in enumerate(calls, 1)),
    )


def _call(call: Any, place: str, losses: Counter[str]) -> ToolCall:
    """A call in OpenAI's form, or in tau2's without ``function``; its name may be missing."""
    if not isinstance(call, dict):
        raise WorkloadError(f"{place}: expected a call, found {looks_like(call)}")
    function = call["function"] if isinstance(call.get("function"), dict) else call
    name = optional_text(function.get("name"), f"{place}, name") or ""
    losses[NO_NAME] += not name
    return ToolCall(
        name=name,
        arguments=argument_text(function.get("arguments"), place, losses),
        call_id=optional_text(call.get("id"), f"{place}, id"),
    )
