"""An engine in a container. It ends with this process, however this one ends (guard.py, orphans.py)."""

import asyncio
import os
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.base import EngineError, Mount
from engines.container import advice, spec
from engines.container.access import let_write
from engines.container.orphans import Owner
from engines.health import healthy_or_ended
from engines.log import Log
from engines.placeholders import names_state
from engines.port import LOOPBACK, check_port_is_free, free_port
from engines.settings import EngineSettings

if TYPE_CHECKING:
    from engines.container.daemon import Daemon

_GUARD = Path(__file__).with_name("guard.py")
_SAID_ELSEWHERE = ("image", "name", "command", "environment", "labels")
_VERSION_S = 5.0
_LAST_WORDS_S = 2.0
"""What the daemon still has of the log arrives within it."""


class ContainerServer:
    """Creates a container from ``settings.container``, waits for ``settings.health``, stops and removes it.

    Args:
        model: what is mounted read-only for ``{model}``; None when the engine loads nothing.
        folder: where ``server.log`` goes, and the folder that is mounted for ``{state}``.
        environment: what forcing needs in the server's environment.
        mounts: what forcing needs to be seen inside.
    """

    def __init__(
        self,
        settings: EngineSettings,
        *,
        model: Path | None,
        folder: Path,
        environment: Mapping[str, str],
        mounts: Sequence[Mount] = (),
    ) -> None:
        self._settings = settings
        self._model = model
        self._folder = folder
        self._log = Log(folder)
        self._forcing_environment = environment
        self._mounts = mounts
        self._port = settings.port
        self._address = LOOPBACK
        self._busy = threading.Lock()
        """Held by the thread that talks to the daemon: one that was abandoned by a cancelled task goes on."""
        self._daemon: Daemon | None = None
        self._container: Any = None
        self._created: dict[str, Any] = {}
        self._image: dict[str, Any] = {}
        self._version: str | None = None
        self._ended = threading.Event()
        self._follower: threading.Thread | None = None
        self._guard: asyncio.subprocess.Process | None = None
        self._stopped = True
        self._swept: list[str] = []

    @property
    def url(self) -> str:
        return f"http://{self._address}:{self._port}"

    async def start(self) -> None:
        """Create, start, and wait until the engine is healthy.

        Raises:
            EngineError: ``setting`` for what the user can correct before anything runs; ``start`` with the reason and
                the last 20 log lines.
        """
        assert not self.alive()
        self._port = self._settings.port or free_port()
        check_port_is_free(self._port)
        self._stopped = False
        self._log.begin()
        name = f"ostinato-{self._settings.name}-{uuid.uuid4().hex[:12]}"
        try:
            arguments = await asyncio.to_thread(self._prepared, name)
            await self._set_guard(name)
            await asyncio.to_thread(self._run, arguments)
            if not await healthy_or_ended(self._settings, self.url, self.alive):
                raise EngineError(
                    f"the engine {self._settings.name} ended at its start ({await self.ended()}); "
                    f"its log says why: {self._log.path}",
                    kind="start",
                )
            await asyncio.to_thread(self._ask_version)
        except EngineError as error:
            await self.stop()
            if error.kind != "start":
                raise
            raise self._log.start_error(str(error)) from error
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the engine and everything in its container: SIGTERM, after ``stop_grace_s`` SIGKILL; remove it."""
        if self._stopped:
            return
        # The thread goes on should this task be cancelled, and the program waits for it before it ends.
        await asyncio.to_thread(self._remove)
        if self._guard is not None and self._guard.stdin is not None:
            with suppress(ConnectionError):  # it ended on its own meanwhile
                self._guard.stdin.write(b"done\n")
                self._guard.stdin.close()
            await self._guard.wait()
        self._stopped = True

    def alive(self) -> bool:
        return self._container is not None and not self._ended.is_set()

    def log_tail(self, lines: int = 20) -> list[str]:
        """The newest lines that the engine wrote since it was started last."""
        return self._log.tail(lines)

    async def ended(self) -> str | None:
        """How the engine ended, out of memory told apart; None while it runs and after it was stopped."""
        if self._container is None or self.alive():
            return None
        return await asyncio.to_thread(self._ending)

    def describe(self) -> dict[str, Any]:
        attributes = self._container.attrs if self._container is not None else {}
        pid = attributes.get("State", {}).get("Pid")
        return {
            "launch": "container",
            **self._image,
            "version": self._version or self._image.get("image_version"),
            "command": [attributes["Path"], *attributes["Args"]] if attributes else [],
            "env": {name: self._created.get("environment", {}).get(name) for name in self._settings.env},
            "created": {name: value for name, value in self._created.items() if name not in _SAID_ELSEWHERE},
            "container": self._created.get("name"),
            "pid": pid if pid and self._daemon is not None and self._daemon.is_local() else None,
            "port": self._port,
            "docker": self._daemon.version if self._daemon is not None else None,
            "removed_orphans": self._swept,
        }

    def _prepared(self, name: str) -> dict[str, Any]:
        """Connect, sweep, look at the image; return what to create."""
        from engines.container.daemon import Daemon  # the SDK takes 0.3 s to import

        with self._busy:
            owner = Owner.this_process()
            daemon = self._daemon = self._daemon or Daemon(self._settings)
            self._address = daemon.address()
            self._swept = daemon.sweep(owner)
            binds = spec.forcing_binds(self._mounts)
            inside = None
            if self._model is not None:
                bind, inside = spec.model_bind(self._model)
                binds.append(bind)
            if state := names_state(spec.command(self._settings), self._settings):
                folder = self._folder.absolute() / "state"
                folder.mkdir(parents=True, exist_ok=True)
                binds.append(spec.Bind(source=folder, target=spec.STATE, read_only=False))
            place = spec.Place(
                name=name,
                port=self._port,
                labels=owner.labels(self._folder.absolute()),
                user=(os.getuid(), os.getgid()),
                model=inside,
                binds=binds,
                forcing=self._forcing_environment,
                state=state,
            )
            self._created = spec.arguments(self._settings, place)
            self._image = daemon.image()
            let_write(self._created["user"], [bind.source for bind in binds if not bind.read_only])
            return self._created

    async def _set_guard(self, name: str) -> None:
        self._guard = await asyncio.create_subprocess_exec(
            sys.executable,
            str(_GUARD),
            name,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in the terminal reaches the harness alone
        )

    def _run(self, arguments: dict[str, Any]) -> None:
        with self._busy:
            assert self._daemon is not None
            self._ended.clear()
            self._container = self._daemon.create(arguments)
            self._daemon.start(self._container)
            self._follower = threading.Thread(target=self._follow, name="container log", daemon=True)
            self._follower.start()

    def _follow(self) -> None:
        assert self._daemon is not None
        try:
            with self._log.path.open("ab", buffering=0) as log:
                self._daemon.follow(self._container, log.write)
        finally:
            self._ended.set()

    def _ask_version(self) -> None:
        """Of a program that the settings call one: a script's interpreter would answer for itself."""
        assert self._daemon is not None
        if self._version is None and (self._settings.binary or self._settings.dialect == "llamacpp"):
            asking = threading.Thread(target=self._ask, daemon=True)
            asking.start()
            asking.join(_VERSION_S)

    def _ask(self) -> None:
        assert self._daemon is not None
        self._version = self._daemon.ask(self._container, [self._container.attrs["Path"], "--version"])

    def _ending(self) -> str:
        assert self._daemon is not None
        if self._follower is not None:
            self._follower.join(_LAST_WORDS_S)
        code, out_of_memory = self._daemon.ending(self._container)
        return advice.ending(code, out_of_memory=out_of_memory, settings=self._settings)

    def _remove(self) -> None:
        with self._busy:
            container, daemon = self._container, self._daemon
            if container is not None and daemon is not None:
                try:
                    if not self._ended.is_set():
                        daemon.signal(container, "SIGTERM")
                        self._ended.wait(self._settings.stop_grace_s)
                finally:
                    daemon.remove(container)
                if self._follower is not None:
                    self._follower.join(_LAST_WORDS_S)
                self._ended.set()
            self._container = None
            if daemon is not None:
                daemon.close()
                self._daemon = None
