"""Whole sessions on real engines in their containers: every token is the recorded one, and nothing is left."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from replay.record import read_result, read_turns

pytestmark = pytest.mark.slow

IMAGES = {"ostinato": "ostinato:cpu", "llamacpp": "ostinato-libllama", "llama_server": "ostinato-llama-server"}
VERIFIED = {"ostinato": "ids", "llamacpp": "ids", "llama_server": "shim"}


def check_run(folder: Path, engine: str, client: docker.DockerClient) -> dict[str, Any]:
    (path,) = folder.glob("results/*/*/*/result.json")
    result, turns = read_result(path.parent), list(read_turns(path.parent))
    assert result["status"] == "complete"
    assert set(result["sessions"].values()) == {"complete"}
    assert len(turns) == result["workload"]["turns"]
    assert {(turn.status, turn.verified_by, turn.attempt) for turn in turns} == {("ok", VERIFIED[engine], 0)}
    server = result["engine"]["server"]
    assert server["image"] == IMAGES[engine]
    assert server["digest"] == client.images.get(IMAGES[engine]).id
    assert str(server["port"]) in server["command"]
    assert (path.parent / "server.log").stat().st_size
    return server


@pytest.mark.parametrize("engine", IMAGES)
def test_the_bundled_sessions_are_exact_and_the_container_is_gone(
    engine: str, replay: Callable[..., Any], image: Any, client: docker.DockerClient, left: Any, tmp_path: Path
) -> None:
    with replay(f"engine={engine}", f"engine.container.image={image(IMAGES[engine])}") as harness:
        code, said = harness.finished()
    assert code == 0, said
    server = check_run(tmp_path, engine, client)
    assert left() == []
    if engine == "llama_server":
        assert server["version"].startswith("version: ")
        assert server["command"][0] == "llama-server"


@pytest.mark.parametrize("engine", IMAGES)
def test_a_real_tau2_session_is_exact(
    engine: str, replay: Callable[..., Any], image: Any, client: docker.DockerClient, shared: Path, tmp_path: Path
) -> None:
    recording = shared / "data" / "tau2" / "retail_gpt-4.1-mini_1sim.json"
    domain = shared / "data" / "tau2_domains" / "retail.json"
    words = ["workload=tau2", f"workload.path={recording}", f"workload.domain={domain}"]
    with replay(f"engine={engine}", f"engine.container.image={image(IMAGES[engine])}", *words) as harness:
        code, said = harness.finished()
    assert code == 0, said
    check_run(tmp_path, engine, client)
