"""The Docker daemon that ``DOCKER_HOST`` names, asked in threads: the SDK blocks. Imported lazily, with the SDK."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import docker
import requests
from docker.errors import APIError, DockerException, NotFound

from engines.base import EngineError
from engines.container import advice
from engines.container.orphans import RUN, Owner, sweep
from engines.port import LOOPBACK
from engines.settings import EngineSettings

_TIMEOUT_S = 60
T = TypeVar("T")


class Daemon:
    """One connection; every method blocks.

    Raises:
        EngineError: ``setting`` when no daemon answers.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        host = os.environ.get("DOCKER_HOST")
        try:
            self._client = docker.from_env(timeout=_TIMEOUT_S)
            self.version: str | None = self._client.version().get("Version")
        except (DockerException, requests.RequestException, OSError) as error:
            raise advice.unreachable(str(error), host) from error

    @staticmethod
    def address() -> str:
        """Where the ports of containers with the host's network answer."""
        url = urlsplit(os.environ.get("DOCKER_HOST") or "")
        return url.hostname if url.scheme in ("tcp", "ssh", "http", "https") and url.hostname else LOOPBACK

    @staticmethod
    def is_local() -> bool:
        """Whether its process ids and files are this machine's."""
        return not os.environ.get("DOCKER_HOST") or os.environ["DOCKER_HOST"].startswith("unix:")

    def gives_gpus(self) -> bool:
        """Whether it says that its containers can have NVIDIA GPUs, by a runtime or by CDI."""
        with self._explained():
            said = self._client.info()
        devices = said.get("DiscoveredDevices") or ()
        return "nvidia" in (said.get("Runtimes") or {}) or any("nvidia" in str(device) for device in devices)

    def sweep(self, here: Owner) -> list[str]:
        """Remove what killed harnesses left; return the containers' names."""
        with self._explained():
            return sweep(self._client.containers.list(all=True, filters={"label": RUN}, ignore_removed=True), here)

    def image(self) -> dict[str, Any]:
        """What identifies the image: ``image`` as it was asked for, ``digest``, and its own labels of its version."""
        asked = self._settings.container.image
        assert asked is not None
        with self._explained():
            attributes = self._client.images.get(asked).attrs
        labels = attributes.get("Config", {}).get("Labels") or {}
        digests = [name.partition("@")[2] for name in attributes.get("RepoDigests") or ()]
        return {
            "image": asked,
            "digest": digests[0] if digests else attributes["Id"],  # one that was built here has none of a registry
            "image_id": attributes["Id"],
            "image_version": labels.get("org.opencontainers.image.version"),
            "image_revision": labels.get("org.opencontainers.image.revision"),
        }

    def create(self, arguments: dict[str, Any]) -> Any:
        with self._explained():
            return self._client.containers.create(**arguments)

    def start(self, container: Any) -> None:
        with self._explained():
            container.start()
            container.reload()

    def ask(self, container: Any, command: list[str]) -> str | None:
        """What a program inside answers, without what forcing preloads; None when it fails."""
        try:
            code, output = container.exec_run(command, environment={"LD_PRELOAD": "", "PYTHONPATH": ""})
        except (DockerException, requests.RequestException):
            return None
        text: str = output.decode(errors="replace")
        return "; ".join(text.split("\n")[:4]).strip("; ") or None if code == 0 else None

    def follow(self, container: Any, write: Callable[[bytes], Any]) -> None:
        """Write the log as it grows; return when the container has ended, or the daemon's answer broke off."""
        try:
            for piece in container.logs(stream=True, follow=True):
                write(piece)
            container.wait(timeout=None)
        except (DockerException, requests.RequestException, OSError):
            return

    def ending(self, container: Any) -> tuple[int | None, bool]:
        """Exit code, and whether memory ran out; ``(None, False)`` when it is gone."""
        try:
            container.reload()
        except (DockerException, requests.RequestException):
            return None, False
        state = container.attrs["State"]
        return state["ExitCode"], bool(state.get("OOMKilled"))

    def signal(self, container: Any, name: str) -> None:
        """Send it; nothing happens when the container has ended."""
        try:
            container.kill(name)
        except APIError:
            return
        except requests.RequestException as error:
            raise advice.unreachable(str(error), os.environ.get("DOCKER_HOST")) from error

    def remove(self, container: Any) -> None:
        """Kill it and remove it, unless it is gone."""
        try:
            container.remove(force=True, v=True)
        except NotFound:
            return
        except APIError as error:
            if "already in progress" not in str(error):
                raise EngineError(
                    f"the container {container.name} could not be removed: {error.explanation}"
                ) from error
        except requests.RequestException as error:
            raise advice.unreachable(str(error), os.environ.get("DOCKER_HOST")) from error

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except APIError as error:
            raise advice.refused(str(error.explanation or error), self._settings) from error
        except (DockerException, ValueError, TypeError) as error:  # the SDK's own checks of what it is given
            raise advice.refused(str(error), self._settings) from error
        except requests.RequestException as error:
            raise advice.unreachable(str(error), os.environ.get("DOCKER_HOST")) from error
