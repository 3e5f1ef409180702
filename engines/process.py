"""An engine as a local process. It and whatever it starts end with this process, however this one ends (guard.py)."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from engines.base import EngineError
from engines.binary import find
from engines.settings import EngineSettings

_HOST = "127.0.0.1"
_LAST_PORT = 65535
_GUARD = Path(__file__).with_name("guard.py")
_POLL_S = 0.05
_HEALTH_TIMEOUT_S = 2.0
_VERSION_TIMEOUT_S = 3.0
_STOP_MARGIN_S = 5.0
"""The guard needs this long at most beyond the grace."""
_TAIL_BYTES = 64 * 1024


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
        self._log = folder / "server.log"
        self._forcing_environment = environment
        self._port = settings.port
        self._command: list[str] = []
        self._guard: asyncio.subprocess.Process | None = None
        self._pid: int | None = None
        self._version: str | None = None
        self._log_start = 0

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self._port}"

    async def start(self) -> None:
        """Start and wait until the engine is healthy.

        Raises:
            EngineError: ``setting`` for what the user can correct before anything runs; ``start`` with the reason and
                the last 20 log lines.
        """
        assert self._guard is None or not self.alive()
        self._port = self._settings.port or _free_port()
        _check_port_is_free(self._port)
        self._command = [self._filled(part, "engine.command") for part in self._settings.command]
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
        try:
            with self._log.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_start, end - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except FileNotFoundError:
            return []
        return text.splitlines()[-lines:] if lines else []

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
        values = {
            "python": sys.executable,
            "port": self._port,
            "context": self._settings.context,
            "threads": self._settings.threads,
            **self._settings.options,
        }
        if self._model is not None:
            values["model"] = self._model
        if self._settings.binary is not None:
            values["binary"] = self._settings.binary
        try:
            return text.format_map(values)
        except KeyError as error:
            name = error.args[0]
            advice = {
                "model": "set engine.model_format to what it loads",
                "binary": "set engine.binary to the server's executable",
            }.get(name, f"choose one of {', '.join(sorted(values))}, or add engine.options.{name}")
            raise EngineError(f"{setting}: nothing fills {{{name}}} in {text!r}; {advice}") from error
        except (ValueError, IndexError, AttributeError) as error:
            raise EngineError(f"{setting}: {text!r}: {error}; write {{{{ and }}}} for plain braces") from error

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
        self._pid = None
        with self._log.open("ab") as log:
            self._log_start = log.tell()
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
        timeout_s = self._settings.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s), httpx.AsyncClient(trust_env=False) as http:
                while self.alive():
                    if await _answers(http, self.url + self._settings.health):
                        return
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise self._start_error(
                f"the engine {self._settings.name} did not get healthy within {timeout_s:g} s "
                f"({self._settings.health} never answered 200); raise engine.start_timeout_s, "
                "or correct engine.health or engine.command"
            ) from None
        raise self._start_error(
            f"the engine {self._settings.name} ended at its start ({await self._exit()}); "
            f"its log says why: {self._log}"
        )

    async def _exit(self) -> str:
        assert self._guard is not None
        assert self._guard.stdout is not None
        word, _, code = (await self._guard.stdout.readline()).decode().strip().partition(" ")
        if word != "exit":
            return "its guard was killed"
        return f"exit code {code}" if not code.startswith("-") else f"signal {code[1:]}"

    def _start_error(self, message: str) -> EngineError:
        tail = self.log_tail()
        return EngineError("\n".join([message, *(f"  {line}" for line in tail)]), kind="start")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _check_port_is_free(port: int) -> None:
    if not 0 < port <= _LAST_PORT:
        raise EngineError(f"engine.port={port} is no port; set 1 to {_LAST_PORT}, or 0 for a free one")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError as error:
            raise EngineError(
                f"port {port}: {error.strerror}; set engine.port to another, or to 0 for a free one"
            ) from error


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


async def _answers(http: httpx.AsyncClient, url: str) -> bool:
    try:
        response = await http.get(url, timeout=_HEALTH_TIMEOUT_S)
    except httpx.TransportError:
        return False
    return response.status_code == httpx.codes.OK
