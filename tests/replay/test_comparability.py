"""Which changes make two runs unlike, and which do not."""

import copy
from typing import Any

import pytest

from replay.comparability import differences, key, run_key

GPU = {"name": "A10", "driver": "565", "power_limit_w": 150.0, "sm_clock_mhz": 1695.0, "temperature_c": 40.0}
RESULT: dict[str, Any] = {
    "engine": {
        "name": "llamacpp",
        "settings": {"context": 4096, "threads": 2, "forcing": "shim", "options": {"batch": "512"}},
    },
    "workload": {"hash": "w1"},
    "model": {"hash": "m1"},
    "repeat": 0,
    "environment": {"machine": "3f2a", "cpu": "Made-up 9000", "gpus": [GPU], "python": "3.11.7", "packages": {}},
    "config": {"arrival": {"name": "closed", "concurrency": 1}, "order": {"sessions": "given", "seed": 0}},
}


def changed(*path: Any, value: Any) -> dict[str, Any]:
    result = copy.deepcopy(RESULT)
    place: Any = result
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return result


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (changed("workload", "hash", value="w2"), "workload.hash"),
        (changed("model", "hash", value="m2"), "model.hash"),
        (changed("environment", "cpu", value="Made-up 9001"), "environment.cpu"),
        (changed("environment", "gpus", 0, "driver", value="570"), "environment.gpus"),
        (changed("environment", "gpus", 0, "power_limit_w", value=100.0), "environment.gpus"),
        (changed("environment", "gpus", value=None), "environment.gpus"),
        (changed("environment", "governor", value="powersave"), "environment.governor"),
        (changed("engine", "settings", "context", value=8192), "engine.context"),
        (changed("engine", "settings", "forcing", value="none"), "engine.forced"),
        (changed("config", "arrival", "concurrency", value=4), "arrival.concurrency"),
        (changed("config", "order", "sessions", value="shuffled"), "order.sessions"),
    ],
)
def test_what_must_agree_changes_the_key_and_is_named(other: dict[str, Any], field: str) -> None:
    assert key(other)["key"] != key(RESULT)["key"]
    assert differences(key(RESULT)["fields"], key(other)["fields"]) == [field]


ENGINES_OWN = [
    changed("engine", "name", value="ostinato"),
    changed("engine", "settings", "threads", value=8),
    changed("engine", "settings", "options", value={"batch": "2048"}),
    changed("engine", "settings", "forcing", value="field"),
]
PASSING = [
    changed("environment", "gpus", 0, "temperature_c", value=80.0),
    changed("environment", "gpus", 0, "sm_clock_mhz", value=210.0),
    changed("config", "arrival", "name", value="closed_again"),
]


@pytest.mark.parametrize("other", [*ENGINES_OWN, *PASSING])
def test_engines_may_differ_in_what_makes_them_engines(other: dict[str, Any]) -> None:
    assert key(other) == key(RESULT)


@pytest.mark.parametrize("other", [*ENGINES_OWN, changed("environment", "python", value="3.12.1")])
def test_one_run_may_not(other: dict[str, Any]) -> None:
    assert run_key(other)["key"] != run_key(RESULT)["key"]


@pytest.mark.parametrize("other", PASSING)
def test_what_moves_with_the_load_is_no_other_run(other: dict[str, Any]) -> None:
    assert run_key(other) == run_key(RESULT)


def test_a_run_that_failed_before_it_knew_its_inputs_has_a_key() -> None:
    assert key(changed("workload", "hash", value=None))["fields"]["workload.hash"] is None


def test_a_field_that_only_one_has_is_a_difference() -> None:
    assert differences({"a": 1}, {"a": 1, "b": None}) == ["b"]
