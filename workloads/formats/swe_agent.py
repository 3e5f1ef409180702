"""SWE-agent runs: ``.traj`` files of every generation, and nebius/SWE-agent-trajectories rows.

The oldest ``.traj`` files hold plain texts, later ones name each message's type, function-calling ones hold calls and
results (``tool_call_ids``, a list), and demonstrations hold a history and nothing else.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workloads.conversation import Conversation, Message
from workloads.formats.chat import list_of
from workloads.formats.containers import rows
from workloads.formats.folders import files_below
from workloads.formats.openai_message import message_of, optional_text
from workloads.formats.openhands import NO_TOOLS, NUMBERED_RUN
from workloads.formats.pairing import pair_results
from workloads.formats.recognise import looks_like
from workloads.session import WorkloadError

SOURCE = "swe_agent"
ENDING = ".traj"

OTHER_AGENT = "messages of a sub-agent, left out of the main agent's session"
MANY_ANSWERED = "results that answer several calls at once, given to the first of them"
NOT_LEARNED = "answers with mask false, given in the prompt and not replayed"
SHORTENED = "turns whose recorded prompt is not the whole history (SWE-agent shortens old outputs); the replay's is"
NEBIUS_ROLES = {"ai": "assistant"}


def matches(head: Any) -> bool:
    """Whether this is a ``.traj`` document or a nebius row."""
    if not isinstance(head, dict):
        return False
    return _is_traj(head) or _is_nebius(head)


def load(path: Path) -> Iterator[Conversation]:
    """Yield one conversation a ``.traj`` file or row.

    Args:
        path: a file, a folder with ``.traj`` files at any depth, or nebius rows (JSON, JSON Lines, Parquet).

    Raises:
        WorkloadError: a file that can't be read, is not of this format, or holds something unknown.
    """
    whole_folder = path.is_dir() and any(path.rglob(f"*{ENDING}*"))
    for file in files_below(path, ENDING) if whole_folder else [path]:
        for place, row in rows(file):
            if _is_nebius(row):
                yield _nebius(place, row)
            elif _is_traj(row):
                yield _traj(place, file.name.split(ENDING)[0], row)
            else:
                raise WorkloadError(f"{place}: {_refusal(row)}")


def _refusal(row: Mapping[str, Any]) -> str:
    steps = row.get("trajectory")
    if "history" not in row and isinstance(steps, list) and steps and _is_step(steps[0]):
        return "a SWE-agent trajectory without history, whose steps alone do not hold the prompts; use the whole file"
    return f"not a SWE-agent trajectory but {looks_like(row)}; choose the format that fits"


def _is_step(value: Any) -> bool:
    return isinstance(value, dict) and "observation" in value


def _is_traj(row: Mapping[str, Any]) -> bool:
    history = row.get("history")
    if not isinstance(history, list) or "instance_id" in row or "messages" in row:
        return False
    return all(isinstance(entry, dict) and "role" in entry for entry in history)


def _is_nebius(row: Mapping[str, Any]) -> bool:
    entries = row.get("trajectory")
    if not isinstance(entries, list) or not entries or "history" in row:
        return False
    return all(isinstance(entry, dict) and "role" in entry and "system_prompt" in entry for entry in entries)


def _traj(place: str, name: str, row: Mapping[str, Any]) -> Conversation:
    losses: Counter[str] = Counter()
    entries = row["history"]
    agent = entries[0].get("agent") if entries else None
    own = [entry for entry in entries if entry.get("agent", agent) == agent]
    losses[OTHER_AGENT] += len(entries) - len(own)
    messages = history(own, f"{place}, history", losses)
    losses[SHORTENED] += _shortened(row.get("trajectory"), own)
    return Conversation(
        conversation_id=name,
        source=SOURCE,
        task_id=name,
        messages=tuple(messages),
        losses=+losses,
    )


def history(entries: list[Any], place: str, losses: Counter[str]) -> list[Message]:
    """Return messages as SWE-agent keeps them: demonstrations are given, results name their calls in a list.

    Raises:
        WorkloadError: an unknown role, or a field of the wrong type.
    """
    messages = []
    for number, entry in enumerate(entries, start=1):
        where = f"{place}, message {number}"
        demo = isinstance(entry, dict) and bool(entry.get("is_demo"))
        messages.append(message_of(_with_one_call_id(entry, where, losses), where, losses, answer=not demo))
    losses[NO_TOOLS] += any(message.tool_calls for message in messages)
    return with_results_marked(pair_results(messages, losses))


def with_results_marked(messages: list[Message]) -> list[Message]:
    """Return the messages of an agent that works alone: what comes after its first answer is its commands' output."""
    first = next((at for at, message in enumerate(messages) if message.origin == "model"), len(messages))
    return [
        replace(message, carries_result=True) if at > first and message.role == "user" else message
        for at, message in enumerate(messages)
    ]


def _with_one_call_id(entry: Any, place: str, losses: Counter[str]) -> Any:
    if not isinstance(entry, dict) or "tool_call_ids" not in entry:
        return entry
    ids = list_of(entry["tool_call_ids"], place, "tool_call_ids")
    losses[MANY_ANSWERED] += len(ids) > 1
    return {**entry, "tool_call_id": ids[0] if ids else None}


def _shortened(steps: Any, entries: list[Any]) -> int:
    """Count the steps whose ``query`` (the prompt as sent, in later versions) is not the history before them."""
    prompts = [step.get("query") for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    answers = [
        at for at, entry in enumerate(entries) if entry.get("role") == "assistant" and not entry.get("is_demo")
    ]
    if len(prompts) != len(answers):
        return 0
    return sum(
        [_said(one) for one in prompt] != [_said(entry) for entry in entries[:at]]
        for prompt, at in zip(prompts, answers, strict=True)
        if isinstance(prompt, list) and prompt
    )


def _said(entry: Any) -> Any:
    """Return a message's text; prompts that mark what to cache hold it in parts."""
    content = entry.get("content") if isinstance(entry, dict) else None
    if not isinstance(content, list):
        return content
    return "".join(str(part.get("text")) for part in content if isinstance(part, dict))


def _nebius(place: str, row: Mapping[str, Any]) -> Conversation:
    losses: Counter[str] = Counter()
    messages = []
    for number, entry in enumerate(row["trajectory"], start=1):
        where = f"{place}, message {number}"
        role = entry.get("role")
        text = entry.get("system_prompt") if role == "system" else entry.get("text")
        learned = entry.get("mask") is not False
        plain = {"role": NEBIUS_ROLES.get(role, role) if isinstance(role, str) else role, "content": text}
        message = message_of(plain, where, losses, answer=learned)
        losses[NOT_LEARNED] += message.role == "assistant" and not learned
        messages.append(message)
    task = str(row.get("instance_id") or place)
    model = optional_text(row.get("model_name"), f"{place}, model_name")
    numbered = NUMBERED_RUN.fullmatch(task)
    return Conversation(
        conversation_id=f"{task}/{model}" if model else task,
        source=SOURCE,
        task_id=numbered["task"] if numbered else task,
        messages=tuple(with_results_marked(messages)),
        losses=+losses,
    )
