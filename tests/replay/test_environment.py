"""What is known of the machine, and what is not told."""

import json
from pathlib import Path

import pytest

from replay import environment


def test_the_facts_are_json_and_hold_what_a_number_depends_on() -> None:
    facts = json.loads(json.dumps(environment.facts()))
    assert facts["cores"] >= facts["usable_cores"] >= 1
    assert facts["memory_bytes"] > 2**28
    assert facts["python"].startswith("3.")
    assert facts["packages"]["httpx"]


def test_what_is_not_installed_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "PACKAGES", ("no-such-package-here",))
    monkeypatch.setenv("PATH", "")
    facts = environment.facts()
    assert facts["packages"] == {"no-such-package-here": None}
    assert facts["gpus"] is None
    assert facts["commit"] is None
    assert facts["changed_files"] is None


def test_home_and_user_are_redacted_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("LOGNAME", "ada")
    found = environment.redact(
        {
            "command": ["/home/ada/bin/server", "--log=/scratch/ada/x"],
            "note": "made in canada by ada",
            "n": 3,
            "x": None,
        }
    )
    assert found == {
        "command": ["~/bin/server", "--log=/scratch/user/x"],
        "note": "made in canada by ada",
        "n": 3,
        "x": None,
    }


def test_another_folder_that_begins_like_home_stays() -> None:
    home = str(Path.home())
    assert environment.redact(f"{home}2/x") == f"{home}2/x"


def test_the_clock_pair_is_read_together() -> None:
    first, second = environment.clock_pair(), environment.clock_pair()
    drift_ns = (second["wall_ns"] - first["wall_ns"]) - (second["perf_ns"] - first["perf_ns"])
    assert abs(drift_ns) < 50_000_000
