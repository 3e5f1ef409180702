"""Which of the coding agents' formats claims which recording."""

import importlib
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

FORMATS = ("openhands_events", "openhands_text", "swe_agent", "mini_swe_agent", "claude_code", "inspect_log", "atif")
OF_FOLDER = {
    "openhands_events": "openhands_events",
    "swesmith_openhands_text": "openhands_text",
    "sweplay_openhands_text": "openhands_text",
    "sweagent_nebius": "swe_agent",
    "sweagent_traj": "swe_agent",
    "mini_swe_agent": "mini_swe_agent",
    "claude_code": "claude_code",
    "inspect_ai": "inspect_log",
}
TRAJECTORY = {"schema_version": "ATIF-v1.4", "session_id": "s", "agent": {"name": "a", "version": "1"}, "steps": []}


def head(path: Path) -> Any:
    if path.suffix == ".eval":
        with zipfile.ZipFile(path) as archive:
            return ("archive", *archive.namelist())
    text = path.read_text()
    try:
        return json.loads(text if path.suffix != ".jsonl" else text.split("\n")[0])
    except ValueError:
        return text[:200]


def claims(value: Any) -> list[str]:
    return [name for name in FORMATS if importlib.import_module(f"workloads.formats.{name}").matches(value)]


def test_every_real_file_is_claimed_by_its_own_format_or_by_none_of_these(shared: Path) -> None:
    skipped = (".parquet", ".md", ".jinja", ".txt")
    files = [one for one in (shared / "data").rglob("*") if one.is_file() and one.suffix not in skipped]
    expected = {file: [OF_FOLDER[file.parent.name]] if file.parent.name in OF_FOLDER else [] for file in files}
    assert len(files) > 60
    assert {file: claims(head(file)) for file in files} == expected


def test_a_trajectory_of_any_atif_version_is_claimed() -> None:
    assert claims(TRAJECTORY) == ["atif"]
    assert claims({**TRAJECTORY, "schema_version": "ATIF-v2.0"}) == ["atif"]


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "text",
        [],
        {},
        [[]],
        [None],
        [7],
        ("archive",),
        ("archive", "a.json"),
        {"history": [7]},
        {"history": "x"},
        {"trajectory": []},
        {"trajectory": [None]},
        {"messages": [None]},
        {"messages": "["},
        {"messages": [{"role": []}]},
        {"type": []},
        {"type": 1, "sessionId": 1},
        {"loglines": 7},
        {"loglines": [7]},
        {"eval": []},
        {"schema_version": 1},
        {"trajectory_format": 1},
        [{"role": [], "content": {}}],
        [{"action": 1}],
    ],
)
def test_values_that_are_no_recording_are_claimed_by_nobody(value: Any) -> None:
    assert claims(value) == []
