"""A real Docker daemon and the images of docker/images.sh, or the reason why there are none."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import DockerException, ImageNotFound

from engines.container.orphans import RUN

SMALL = [
    *(f"model.synthetic.{word}" for word in ("layers=2", "experts=8", "hidden=64", "expert_width=32", "head_dim=32")),
    "telemetry.every_s=null",
]
"""A model that computes little."""


def missing(reason: str) -> None:
    """Skip; where the images were built just before, they must be there."""
    if os.environ.get("OSTINATO_CONTAINERS"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def client() -> Iterator[docker.DockerClient]:
    try:
        found = docker.from_env()
    except DockerException as error:
        missing(f"no Docker daemon answers ({error}); see docker/daemon.sh")
        raise
    yield found
    found.close()


@pytest.fixture(scope="session")
def image(client: docker.DockerClient) -> Callable[[str], str]:
    """The name of an image that is there."""

    def checked(name: str) -> str:
        try:
            client.images.get(name)
        except ImageNotFound:
            missing(f"there is no image {name}; docker/images.sh builds it")
        return name

    return checked


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model and the forcing library are made once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def left(client: docker.DockerClient, tmp_path: Path) -> Iterator[Callable[[], list[Any]]]:
    """The containers of this test's runs; none may be there at its end, and none is."""

    def found() -> list[Any]:
        labelled = client.containers.list(all=True, filters={"label": RUN}, ignore_removed=True)
        return [container for container in labelled if container.labels[RUN].startswith(str(tmp_path))]

    yield found
    for container in found():
        container.remove(force=True)


class Harness:
    """``replay`` as a process of its own."""

    def __init__(self, folder: Path, cache: Path, words: list[str]) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "replay.cli", *SMALL, *words],
            cwd=folder,
            env={**os.environ, "OSTINATO_CACHE": str(cache), "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finished(self, within_s: float = 300) -> tuple[int, str]:
        """Exit code and what it said."""
        out, err = self.process.communicate(timeout=within_s)
        return self.process.returncode, out + err

    def turns(self) -> int:
        """Records so far."""
        return sum(path.read_bytes().count(b"\n") for path in self.folder.glob("results/*/*/*/turns.jsonl"))

    def until(self, met: Callable[[], bool], within_s: float = 180) -> None:
        deadline = time.monotonic() + within_s
        while not met():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture
def replay(tmp_path: Path, cache: Path, left: Any) -> Callable[..., Any]:
    """``with replay("engine=ostinato", …) as harness``."""

    @contextmanager
    def run(*words: str) -> Iterator[Harness]:
        harness = Harness(tmp_path, cache, [*words, "launch=container"])
        try:
            yield harness
        finally:
            harness.process.kill()
            harness.process.communicate()

    return run
