"""What a container server says before any daemon is asked; with a real one: tests/containers."""

import subprocess
import sys
from pathlib import Path

import pytest

from engines.base import EngineError
from engines.container.server import ContainerServer
from engines.settings import ContainerSettings, EngineSettings

ENGINE = EngineSettings(
    name="tested", label="T", dialect="ostinato", forcing="none", container=ContainerSettings(image="engine:1")
)


@pytest.mark.anyio
async def test_without_a_daemon_the_start_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    server = ContainerServer(ENGINE, model=None, folder=tmp_path, environment={})
    with pytest.raises(EngineError, match=r"no Docker daemon answers at DOCKER_HOST=.*none; start Docker") as failure:
        await server.start()
    assert failure.value.kind == "setting"
    assert "\n" not in str(failure.value)
    assert not server.alive()
    assert await server.ended() is None
    await server.stop()


def test_who_starts_no_container_does_not_load_the_sdk() -> None:
    loaded = "import sys, replay.launch; print([name for name in ('docker', 'requests') if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", loaded], capture_output=True, text=True, cwd=Path(__file__).parents[3]
    )
    assert done.stdout.strip() == "[]", done.stderr
