"""Starts the sampling process beside a run and ends it."""

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from replay.telemetry.settings import TelemetrySettings

_STOP_S = 5.0


class Recorder:
    """The sampler as a child process. It never fails a run: ``error`` says what it died of."""

    def __init__(self, folder: Path, settings: TelemetrySettings) -> None:
        self.error: str | None = None
        self._command = [
            sys.executable,
            "-m",
            "replay.telemetry.sampler",
            str(folder),
            f"--every-s={settings.every_s}",
        ]
        self._command += ["--server-metrics"] * settings.server_metrics
        self._sampler: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._sampler = subprocess.Popen(  # noqa: S603 this project's own module
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C in the terminal reaches the harness alone
        )

    def follow(self, engine: Mapping[str, Any]) -> None:
        """Say which engine runs now: ``{"pid", "url"}``."""
        if self._sampler and self._sampler.stdin:
            with suppress(BrokenPipeError):  # it ended; ``stop`` says why
                self._sampler.stdin.write(json.dumps(engine).encode() + b"\n")
                self._sampler.stdin.flush()

    def stop(self) -> None:
        """End it after a last sample."""
        if self._sampler is None:
            return
        with suppress(BrokenPipeError):
            try:
                _, said = self._sampler.communicate(timeout=_STOP_S)
            except subprocess.TimeoutExpired:
                self._sampler.kill()
                _, said = self._sampler.communicate()
            if self._sampler.returncode:
                last = (said.decode(errors="replace").strip().splitlines() or ["it was killed"])[-1]
                self.error = f"the sampler ended with code {self._sampler.returncode}: {last}"
        self._sampler = None
