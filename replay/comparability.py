"""Which runs may be compared: those whose keys are equal. The key is a hash of named fields of the result.

Two engines may differ in what makes them engines (program, kernels, threads, batch sizes), and in nothing else: not
in machine, workload, model, context, forcing or pace.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from replay.gpu import CONSTANT

MACHINE = (
    "machine", "cpu", "cores", "usable_cores", "cpu_quota_cores", "smt", "max_mhz", "governor", "no_turbo",
    "numa_nodes", "numa_balancing", "memory_bytes", "huge_pages", "kernel",
)  # fmt: skip
SAME_RUN = ("python", "packages", "commit")
"""Of the environment, beyond ``MACHINE``: what must not change within one run."""

Result = Mapping[str, Any]
"""``result.json`` as it is."""


def key(result: Result) -> dict[str, Any]:
    """``{"key", "fields"}``: what is stored as a result's ``comparability``."""
    found = fields(result)
    return {"key": _hash(found), "fields": found}


def fields(result: Result) -> dict[str, Any]:
    """What engines that are compared must share; a field that a run lacks is not there."""
    environment, settings = result.get("environment") or {}, result["engine"].get("settings") or {}
    config = result.get("config") or {}
    found = {
        "workload.hash": result["workload"]["hash"],
        "model.hash": result["model"]["hash"],
        **{f"environment.{name}": environment[name] for name in MACHINE if name in environment},
    }
    if "gpus" in environment:
        found["environment.gpus"] = _constant(environment["gpus"])
    if "context" in settings:
        found["engine.context"] = settings["context"]
    if "forcing" in settings:  # by which route it is forced may differ, whether it is may not
        found["engine.forced"] = settings["forcing"] != "none"
    found |= {f"arrival.{name}": value for name, value in (config.get("arrival") or {}).items() if name != "name"}
    if "order" in config:
        found |= {f"order.{name}": config["order"][name] for name in ("sessions", "seed")}
    return found


def run_key(result: Result) -> dict[str, Any]:
    """``{"key", "fields"}`` of what must not change when a run is taken up again: all of the above, the engine as it
    was started, and this program."""
    environment, engine = result.get("environment") or {}, result["engine"]
    found = fields(result) | {
        "engine.name": engine["name"],
        "repeat": result.get("repeat", 0),
        **{f"engine.{name}": value for name, value in (engine.get("settings") or {}).items()},
        **{f"environment.{name}": environment.get(name) for name in SAME_RUN},
    }
    return {"key": _hash(found), "fields": found}


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of the fields of two keys that differ, or that only one has."""
    return [name for name in dict.fromkeys([*one, *other]) if one.get(name, _MISSING) != other.get(name, _MISSING)]


_MISSING = object()


def _constant(gpus: Any) -> Any:
    if not isinstance(gpus, list):
        return gpus
    return [{n: gpu.get(n) for n in CONSTANT} if isinstance(gpu, Mapping) else gpu for gpu in gpus]


def _hash(found: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]
