"""A tau2-bench domain: the instructions, policy and tool schemas that the agent's model saw."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workloads.formats.containers import read_json
from workloads.formats.recognise import looks_like
from workloads.session import WorkloadError

INSTRUCTIONS_FILE = "llm_agent_system_prompt.txt"
PLACEHOLDER = "{domain_policy}"

NO_INSTRUCTIONS = (
    f"sessions without the instructions around the policy: put {INSTRUCTIONS_FILE} beside the domain's file"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    policy: str
    tools: tuple[Mapping[str, Any], ...]
    """The agent's tools; the user's own are not among them."""
    instructions: str = PLACEHOLDER
    losses: Mapping[str, int] = field(default_factory=dict)
    """What each session of this domain lacks, by reason."""

    @property
    def tool_names(self) -> frozenset[str]:
        return frozenset(tool["function"]["name"] for tool in self.tools)

    def system_prompt(self, recorded_policy: str | None) -> str:
        """Return the agent's system prompt; a policy that was recorded with the session wins over the domain's."""
        return self.instructions.replace(PLACEHOLDER, recorded_policy or self.policy)


def read_domain(path: Path, name: str) -> Domain:
    """Read a domain from ``{domain, policy, agent_tools}`` JSON.

    Args:
        path: the domain's file, or a folder with ``<domain>.json``; the instructions lie beside it.
        name: the domain that a recording names. A variant (``telecom-workflow``) shares its base domain's tools.

    Raises:
        WorkloadError: no file for this domain, another domain's file, or one of another form.
    """
    base = name.split("-")[0]
    file = path
    if path.is_dir():
        file = next(
            (path / f"{one}.json" for one in (name, base) if (path / f"{one}.json").is_file()), path / f"{name}.json"
        )
        if not file.is_file():
            raise WorkloadError(
                f"{path}: holds no {name}.json; set workload.domain to the folder or file of domain {name}"
            )
    elif not path.is_file():
        raise WorkloadError(
            f"{path}: no such file or folder; set workload.domain to where the domain's tool schemas are"
        )
    content = read_json(file)
    policy, tools = (content.get("policy"), content.get("agent_tools")) if isinstance(content, dict) else (None, None)
    if not isinstance(policy, str) or not isinstance(tools, list) or not all(_is_schema(tool) for tool in tools):
        raise WorkloadError(
            f"{file}: not a tau2 domain (domain, policy, agent_tools) but {looks_like(content)}; set workload.domain"
        )
    if content.get("domain", name) not in (name, base):
        raise WorkloadError(
            f"{file}: this is domain {content['domain']}, the recording's is {name}; set workload.domain"
        )
    instructions = file.parent / INSTRUCTIONS_FILE
    if not instructions.is_file():
        return Domain(policy=policy, tools=tuple(tools), losses={NO_INSTRUCTIONS: 1})
    return Domain(policy=policy, tools=tuple(tools), instructions=_instructions(instructions))


def _is_schema(tool: Any) -> bool:
    return (
        isinstance(tool, dict)
        and isinstance(tool.get("function"), dict)
        and isinstance(tool["function"].get("name"), str)
    )


def _instructions(path: Path) -> str:
    # tau2-bench strips its template before it fills the policy in.
    text = path.read_text(encoding="utf-8").strip()
    if PLACEHOLDER not in text:
        raise WorkloadError(f"{path}: has no {PLACEHOLDER} to put the policy in; restore tau2-bench's template")
    return text
