"""Controlled background load while sessions are replayed, in timed phases.

Each load runs in a process of its own (``pressure_worker.py``) and writes what it really did, and when, to
``pressure.jsonl`` in the run's folder. A worker ends when its standard input does, so none outlives the harness.
"""

import json
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self

from engines.base import EngineError
from replay.record import PRESSURE_FILE

KINDS = ("cpu", "memory", "gpu", "pcie")
_STOP_S = 2.0


@dataclass
class Phase:
    """From when to when how much of what; plain because OmegaConf builds its schema from it."""

    kind: str
    """``cpu``: computes; ``memory``: copies between buffers larger than a cache; ``gpu``: computes on a GPU's every
    core; ``pcie``: copies from pinned host memory to a GPU."""
    level: float
    """Percent of the time that each worker is at it; what that amounts to (CPU time, bytes) is measured."""
    start_s: float = 0.0
    """After the first engine of the run was ready."""
    stop_s: float | None = None
    """None: until the run ends."""
    workers: int = 1
    """Processes, each on one core: 50 % of 4 cores is level 50 with 4 workers."""


@dataclass
class PressureSettings:
    """Plain and mutable because OmegaConf builds its schema from it; treated as read-only everywhere else."""

    name: str = "none"
    phases: list[Phase] = field(default_factory=list)


def check(pressure: PressureSettings) -> None:
    """Refuse what can't be meant.

    Raises:
        EngineError: the setting and a good value.
    """
    for number, phase in enumerate(pressure.phases):
        place = f"pressure.phases[{number}]"
        if phase.kind not in KINDS:
            raise EngineError(f"{place}.kind={phase.kind} is not known; set one of {', '.join(KINDS)}")
        if not 0 < phase.level <= 100:
            raise EngineError(f"{place}.level={phase.level:g} is no percentage; set it above 0 and up to 100")
        if phase.workers < 1:
            raise EngineError(f"{place}.workers={phase.workers}; set 1 or more")
        if phase.start_s < 0 or (phase.stop_s is not None and phase.stop_s <= phase.start_s):
            raise EngineError(f"{place} stops before it starts; set start_s to 0 or more and stop_s above it")
    for kind in KINDS:
        alike = sorted((phase for phase in pressure.phases if phase.kind == kind), key=lambda phase: phase.start_s)
        for before, after in pairwise(alike):
            if before.stop_s is None or before.stop_s > after.start_s:
                raise EngineError(
                    f"pressure.phases: two of kind {kind} overlap from {after.start_s:g} s; "
                    "end the first one with stop_s, or make them one with more workers"
                )


class Pressure:
    """The workers of one run: got ready on entry, let go by ``begin``, ended on exit.

    Args:
        folder: the run's.

    Raises:
        EngineError: what a load needs is not here.
    """

    def __init__(self, pressure: PressureSettings, folder: Path) -> None:
        self._settings = pressure
        self._file = folder.resolve() / PRESSURE_FILE
        self._workers: list[subprocess.Popen[str]] = []
        self._begun = False

    def __enter__(self) -> Self:
        try:
            for kind in KINDS:
                phases = [(n, phase) for n, phase in enumerate(self._settings.phases) if phase.kind == kind]
                for worker in range(max((phase.workers for _, phase in phases), default=0)):
                    mine = [{"number": n, **asdict(phase)} for n, phase in phases if phase.workers > worker]
                    self._start({"kind": kind, "worker": worker, "file": str(self._file), "phases": mine})
            for process in self._workers:
                assert process.stdout is not None
                if (answer := process.stdout.readline().strip()) != "ready":
                    raise EngineError(answer or "a pressure worker ended at its start; its error stands above")
        except BaseException:
            self._stop()
            raise
        return self

    def _start(self, order: dict[str, object]) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "replay.pressure_worker"],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a Ctrl-C in the terminal reaches the harness alone
        )
        self._workers.append(process)
        self._tell(process, json.dumps(order))

    def begin(self) -> None:
        """Start the clock of the phases; only the first call counts."""
        if not self._begun:
            self._begun = True
            now_ns = time.perf_counter_ns()
            for process in self._workers:
                self._tell(process, str(now_ns))

    @staticmethod
    def _tell(process: subprocess.Popen[str], line: str) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise EngineError("a pressure worker ended early; its error stands above") from None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        for process in self._workers:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it ended before
                process.stdin.close()
        until_s = time.monotonic() + _STOP_S
        for process in self._workers:
            try:
                process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
