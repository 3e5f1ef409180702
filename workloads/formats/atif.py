"""ATIF trajectories (Agent Trajectory Interchange Format 1.0 to 1.7, written by Harbor and the agents it runs).

An agent's step holds its message, its calls and what came back of them. Later versions add tool definitions (1.5),
images and copied context (1.6), sub-agents in the same file (1.7).
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workloads.conversation import Conversation, Message, ToolCall
from workloads.formats.chat import list_of, text_of
from workloads.formats.containers import rows
from workloads.formats.folders import files_below
from workloads.formats.openai_message import argument_text, optional_text, schemas_of
from workloads.formats.openhands import NO_TOOLS
from workloads.formats.pairing import pair_results
from workloads.formats.recognise import looks_like
from workloads.formats.times import time_s
from workloads.session import WorkloadError

SOURCE = "atif"
VERSION = "ATIF-v1."
NAME = "trajectory"
"""What Harbor's files begin with: ``trajectory.json``, ``trajectory.cont-1.json``, ``trajectory.summary….json``."""

NO_SYSTEM = "sessions without their system prompt"
COPIED = "steps copied from an earlier trajectory, given in the prompt and not replayed"
NO_MODEL = "steps of the agent without a model call, given in the prompt and not replayed"
MANY_CALLS = "steps that sum up several model calls, replayed as one turn"
SYSTEM_EVENTS = "results of system steps (context management, sub-agents), which no message shows"
ELSEWHERE = "results that only name a sub-agent's trajectory"


def matches(head: Any) -> bool:
    """Whether this is a trajectory."""
    return isinstance(head, dict) and _version(head) is not None and isinstance(head.get("steps"), list)


def load(path: Path) -> Iterator[Conversation]:
    """Yield a conversation for each trajectory of a file, with those of its sub-agents, or of Harbor's files below.

    Args:
        path: a file (JSON, JSON Lines, Parquet), or a folder with ``trajectory*.json`` files at any depth.

    Raises:
        WorkloadError: a file that can't be read, is not of this format, or holds something unknown.
    """
    found = [path]
    if path.is_dir():
        found = [file for file in files_below(path, ".json") if file.name.startswith(NAME)] or [path]
    for file in found:
        for place, row in rows(file):
            name = file.stem if file.parent == path or path == file else f"{file.parent.name}/{file.stem}"
            yield from _trajectory(place, name, row)


def _version(row: Mapping[str, Any]) -> str | None:
    version = row.get("schema_version")
    return version if isinstance(version, str) and version.startswith("ATIF-") else None


def _trajectory(place: str, name: str, row: Any, task: str | None = None) -> Iterator[Conversation]:
    version = _version(row) if isinstance(row, dict) else None
    if version is None:
        raise WorkloadError(f"{place}: not an ATIF trajectory but {looks_like(row)}; choose the format that fits")
    if not version.startswith(VERSION):
        raise WorkloadError(f"{place}: schema_version {version} is unknown; known are {VERSION}0 to {VERSION}7")
    run = optional_text(row.get("session_id"), f"{place}, session_id")
    own = optional_text(row.get("trajectory_id"), f"{place}, trajectory_id")
    task = task or run or own or name
    yield _conversation(place, "/".join(dict.fromkeys(one for one in (task, run, own) if one)), task, row)
    inside = list_of(row.get("subagent_trajectories"), place, "subagent_trajectories")
    for number, one in enumerate(inside, start=1):
        yield from _trajectory(f"{place}, sub-agent {number}", f"{name}/{number}", one, task)


def _conversation(place: str, name: str, task: str, row: Mapping[str, Any]) -> Conversation:
    losses: Counter[str] = Counter()
    messages = [
        message
        for number, step in enumerate(list_of(row.get("steps"), place, "steps"), start=1)
        for message in _step(step, f"{place}, step {number}", losses)
    ]
    agent = row.get("agent")
    definitions = agent.get("tool_definitions") if isinstance(agent, dict) else None
    tools = schemas_of(definitions, f"{place}, agent.tool_definitions")
    losses[NO_SYSTEM] += not any(message.role == "system" for message in messages)
    losses[NO_TOOLS] += not tools and any(message.tool_calls for message in messages)
    return Conversation(
        conversation_id=name,
        source=SOURCE,
        task_id=task,
        messages=tuple(pair_results(messages, losses)),
        tools=tools,
        losses=+losses,
    )


def _step(step: Any, place: str, losses: Counter[str]) -> Iterator[Message]:
    source = step.get("source") if isinstance(step, dict) else None
    if source not in ("system", "user", "agent"):
        what = repr(source) if isinstance(step, dict) else looks_like(step)
        raise WorkloadError(f"{place}: source must be system, user or agent, found {what:.60}; fix this trajectory")
    text = text_of(step.get("message"), place, losses)
    at = time_s(step.get("timestamp"), place)
    observation = step.get("observation")
    results = list_of(observation.get("results") if isinstance(observation, dict) else None, place, "results")
    if source != "agent":
        losses[SYSTEM_EVENTS] += len(results)
        yield Message(role="system" if source == "system" else "user", origin="given", content=text, time_s=at)
        return
    yield Message(
        role="assistant",
        origin="model" if _is_from_model(step, losses) else "given",
        content=text,
        reasoning=optional_text(step.get("reasoning_content"), f"{place}, reasoning_content") or None,
        tool_calls=tuple(
            _call(call, f"{place}, tool call {number}", losses)
            for number, call in enumerate(list_of(step.get("tool_calls"), place, "tool_calls"), start=1)
        ),
        time_s=at,
    )
    for number, result in enumerate(results, start=1):
        yield from _result(result, f"{place}, result {number}", losses)


def _is_from_model(step: Mapping[str, Any], losses: Counter[str]) -> bool:
    copied = bool(step.get("is_copied_context"))
    calls = step.get("llm_call_count")
    count = calls if isinstance(calls, int) else 1
    losses[COPIED] += copied
    losses[NO_MODEL] += not copied and count == 0
    losses[MANY_CALLS] += not copied and count > 1
    return not copied and count != 0


def _call(call: Any, place: str, losses: Counter[str]) -> ToolCall:
    name = call.get("function_name") if isinstance(call, dict) else None
    if not isinstance(name, str):
        raise WorkloadError(f"{place}: has no function_name; fix or delete this trajectory")
    return ToolCall(
        name=name,
        arguments=argument_text(call.get("arguments"), place, losses),
        call_id=optional_text(call.get("tool_call_id"), f"{place}, tool_call_id"),
    )


def _result(result: Any, place: str, losses: Counter[str]) -> Iterator[Message]:
    if not isinstance(result, dict):
        raise WorkloadError(f"{place}: expected a result, found {looks_like(result)}; fix or delete this trajectory")
    elsewhere = result.get("content") is None and bool(result.get("subagent_trajectory_ref"))
    losses[ELSEWHERE] += elsewhere
    text = "" if elsewhere else text_of(result.get("content"), place, losses)
    call_id = optional_text(result.get("source_call_id"), f"{place}, source_call_id")
    if call_id is not None:
        yield Message(role="tool", origin="given", content=text, tool_call_id=call_id)
    elif not elsewhere:  # it answers no call (a terminal's screen, say), so the model saw a user message
        yield Message(role="user", origin="given", content=text, carries_result=True)
