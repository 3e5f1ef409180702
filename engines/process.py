"""An engine as a local process. It and whatever it starts end with this process, however this one ends (guard.py)."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.base import EngineError
from engines.binary import find
from engines.health import healthy_or_ended
from engines.log import Log
from engines.placeholders import filled, filled_command, names_state, placeholders
from engines.port import LOOPBACK, check_port_is_free, free_port
from engines.settings import EngineSettings

_GUARD = Path(__file__).with_name("guard.py")
_VERSION_TIMEOUT_S = 3.0
_STOP_MARGIN_S = 5.0
"""The guard needs this long at most beyond the grace."""


class ProcessServer:
    """Starts ``settings.command``, waits for ``settings.health``, stops all of it.

    Args:
        model: what ``{model}`` names; None when the engine loads nothing.
        folder: where ``server.log`` goes.
        environment: what forcing needs in the server's environment.
    """

    def __init__(
        self, settings: EngineSettings, *, model: Path | None, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self._settings = settings
        self._model = model
        self._folder = folder
        self._log = Log(folder)
        self._state: Path | None = None
        self._forcing_environment = environment
        self._port = settings.port
        self._command: list[str] = []
        self._guard: asyncio.subprocess.Process | None = None
        self._pid: int | None = None
        self._version: str | None = None
        self._exit_said: str | None = None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    async def start(self) -> None:
        """Start and wait until the engine is healthy.

        Raises:
            EngineError: ``setting`` for what the user can correct before anything runs; ``start`` with the reason and
                the last 20 log lines.
        """
        assert self._guard is None or not self.alive()
        self._port = self._settings.port or free_port()
        check_port_is_free(self._port)
        if names_state(self._settings.command, self._settings):
            self._state = self._folder / "state"
            self._state.mkdir(parents=True, exist_ok=True)
        self._command = filled_command(self._settings.command, "engine.command", self._values())
        self._command[:1] = [_executable(self._settings, self._command)]
        if self._settings.binary:
            self._version = await _version(self._command[0], self._environment(forced=False))
        try:
            await self._launch()
            await self._wait_until_healthy()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop the engine and everything it started: SIGTERM, after ``stop_grace_s`` SIGKILL."""
        guard = self._guard
        if guard is None or guard.returncode is not None:
            return
        assert guard.stdin is not None
        with contextlib.suppress(ConnectionError):  # it ended on its own meanwhile
            guard.stdin.write(b"stop\n")
            guard.stdin.close()  # should this task be cancelled now, the guard goes on alone
        try:
            async with asyncio.timeout(self._settings.stop_grace_s + _STOP_MARGIN_S):
                await guard.wait()
        except TimeoutError:
            guard.kill()  # the kernel then kills the engine itself
            await guard.wait()

    def alive(self) -> bool:
        return self._guard is not None and self._guard.returncode is None

    def log_tail(self, lines: int = 20) -> list[str]:
        """The newest lines that the engine wrote since it was started last."""
        return self._log.tail(lines)

    async def ended(self) -> str | None:
        """``exit code 7``, ``signal 9``; None while it runs and after it was stopped."""
        if self._guard is None or self.alive():
            return None
        return await self._exit()

    def describe(self) -> dict[str, Any]:
        return {
            "launch": "process",
            "command": self._command,
            "env": {name: self._filled(value, f"engine.env.{name}") for name, value in self._settings.env.items()},
            "pid": self._pid,
            "port": self._port,
            "version": self._version,
        }

    def _filled(self, text: str, setting: str) -> str:
        return filled(text, setting, self._values())

    def _values(self) -> dict[str, object]:
        return placeholders(
            self._settings,
            python=sys.executable,
            model=str(self._model) if self._model is not None else None,
            host=LOOPBACK,
            port=self._port,
            state=str(self._state) if self._state is not None else None,
        )

    def _environment(self, *, forced: bool) -> dict[str, str]:
        own = {name: self._filled(value, f"engine.env.{name}") for name, value in self._settings.env.items()}
        environment = {**os.environ, **own}
        if forced:
            preloads = [self._forcing_environment.get("LD_PRELOAD"), environment.get("LD_PRELOAD")]
            environment |= self._forcing_environment
            if any(preloads):
                environment["LD_PRELOAD"] = ":".join(filter(None, preloads))
        return environment

    async def _launch(self) -> None:
        order = {
            "command": self._command,
            "environment": self._environment(forced=True),
            "grace_s": self._settings.stop_grace_s,
        }
        self._pid = self._exit_said = None
        self._log.begin()
        with self._log.path.open("ab") as log:
            self._guard = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(_GUARD),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal reaches the harness alone
            )
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.write(json.dumps(order).encode() + b"\n")
        await self._guard.stdin.drain()
        word, _, rest = (await self._guard.stdout.readline()).decode().rstrip("\n").partition(" ")
        if word == "pid":
            self._pid = int(rest)
            return
        await self._guard.wait()
        reason = rest or "\n".join(["its guard ended", *self.log_tail()])
        raise EngineError(f"{self._command[0]} could not be run: {reason}; check engine.command", kind="start")

    async def _wait_until_healthy(self) -> None:
        try:
            if await healthy_or_ended(self._settings, self.url, self.alive):
                return
        except EngineError as error:
            raise self._log.start_error(str(error)) from None
        raise self._log.start_error(
            f"the engine {self._settings.name} ended at its start ({await self._exit()}); "
            f"its log says why: {self._log.path}"
        )

    async def _exit(self) -> str:
        assert self._guard is not None
        assert self._guard.stdout is not None
        if self._exit_said is None:
            word, _, code = (await self._guard.stdout.readline()).decode().strip().partition(" ")
            if word != "exit":
                self._exit_said = "its guard was killed"
            else:
                self._exit_said = f"signal {code[1:]}" if code.startswith("-") else f"exit code {code}"
        return self._exit_said


def _executable(settings: EngineSettings, command: list[str]) -> str:
    """The absolute path of the program.

    Raises:
        EngineError: none is named, it is missing, or it may not be run.
    """
    if not command:
        raise EngineError("engine.command is empty; give the program and its arguments")
    program = command[0]
    setting = "engine.binary" if program == settings.binary else "engine.command"
    if found := find(program):
        return str(found)
    if Path(program).is_file():
        raise EngineError(f"{setting}: {program} may not be executed; chmod +x {program}")
    build = "run `make llama-server`, or set" if settings.dialect == "llamacpp" else "install it, or correct"
    raise EngineError(f"{setting}: there is no {program}; {build} {setting}")


async def _version(program: str, environment: dict[str, str]) -> str | None:
    """What the program answers to ``--version``, on one line; None when it does not answer."""
    with contextlib.suppress(OSError, TimeoutError):
        asking = await asyncio.create_subprocess_exec(
            program,
            "--version",
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = await asyncio.wait_for(asking.communicate(), _VERSION_TIMEOUT_S)
        except (TimeoutError, asyncio.CancelledError):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(asking.pid, signal.SIGKILL)  # a script's children too
            await asking.wait()
            raise
        if asking.returncode == 0:
            return "; ".join(output.decode(errors="replace").split("\n")[:4]).strip("; ") or None
    return None
