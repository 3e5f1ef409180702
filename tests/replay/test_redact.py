"""Planted secrets, in every place where a result could hold one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replay.redact import HIDDEN, redact


@pytest.fixture(autouse=True)
def ada(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setenv("MY_SERVICE_TOKEN", "planted-0-abcdef")


PLANTED = {
    "variables": {"HF_TOKEN": "planted-1", "AWS_SECRET_ACCESS_KEY": "planted-2", "DB_PASSWORD": "planted-3"},
    "settings": {"engine": {"options": {"api_key": "planted-4"}, "headers": {"Authorization": "Bearer planted-5"}}},
    "command": ["server", "--api-key", "planted-6", "--hf-token=planted-7", "-H", "Authorization: Basic planted-8"],
    "overrides": ["+engine.env.OPENAI_API_KEY=planted-9", "engine.options.password=planted-10"],
    "url": "http://ada:planted-11@gpu.example:8000/v1",
    "error": "401 for x-api-key: planted-12 at http://user:planted-13@host/?token=planted-14&x=1",
    "forms": ["key sk-planted15abcdefghij was refused", "hf_planted16abcdefghijkl"],
    "resolved": "the server said: planted-0-abcdef is no such model",
}


def test_no_planted_secret_is_left() -> None:
    text = json.dumps(redact(PLANTED))
    assert "planted" not in text
    assert text.count(HIDDEN) >= 16


def test_a_run_leaves_no_secret_in_any_of_its_files(
    replay: Callable[..., Any], fake: Callable[..., list[str]], tmp_path: Path
) -> None:
    done = replay(
        *fake(), "workload.sessions=1", "+engine.env.HF_TOKEN=planted-1", "engine.note=see planted-0-abcdef"
    )
    assert done.code == 0, done.err
    files = [path for path in tmp_path.rglob("results/**/*") if path.is_file()]
    assert {"result.json", "turns.jsonl", "report.html", "results.json"} <= {path.name for path in files}
    assert [path.name for path in files if b"planted" in path.read_bytes()] == []


def test_what_surrounds_a_secret_is_kept() -> None:
    found = redact(PLANTED)
    assert found["command"][:2] == ["server", "--api-key"]
    assert found["command"][3] == f"--hf-token={HIDDEN}"
    assert found["overrides"][0] == f"+engine.env.OPENAI_API_KEY={HIDDEN}"
    assert found["url"] == f"http://{HIDDEN}@gpu.example:8000/v1"
    assert found["error"].endswith("&x=1")


def test_what_only_sounds_like_a_secret_is_kept() -> None:
    kept = {
        "env": {"OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false"},
        "experts_per_token": "4",
        "prefill_ms_per_token": "0.01",
        "max_tokens": 100,
        "tokenizer": "gpt",
        "key": "d7e768c040d3b74f",
        "fields": {"workload.hash": "fc744650"},
        "command": ["--threads", "2", "--prefill-ms-per-token", "0.01", "--ctx-size=4096", "--cache-ram", "0"],
        "url": "http://127.0.0.1:8000/a@b",
        "note": "made in canada by ada",
        "n": 3,
        "x": None,
    }
    assert redact(kept) == kept


def test_home_and_user_are_redacted_everywhere() -> None:
    assert redact({"command": ("/home/ada/bin/server", "--log=/scratch/ada/x")}) == {
        "command": ["~/bin/server", "--log=/scratch/user/x"]
    }


def test_another_folder_that_begins_like_home_stays() -> None:
    home = str(Path.home())
    assert redact(f"{home}2/x") == f"{home}2/x"


def test_a_short_value_is_not_hunted_through_every_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_AUTH", "on")
    assert redact("on and on") == "on and on"
