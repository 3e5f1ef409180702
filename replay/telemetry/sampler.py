"""The sampling process: one line of JSON a sample into ``telemetry.jsonl``, until its input ends.

Apart from the harness, so that nothing it does delays a stamp; at the lowest priority; standard library only. Its
input names the engine, a line of JSON each time one starts: ``{"pid", "url"}``. The input's end says that the run is
over or the harness is gone. Samples are due at absolute times; one that is missed is skipped.
"""

import argparse
import contextlib
import json
import os
import select
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replay.telemetry.nvml import Gpus
from replay.telemetry.sources import CpuEnergy, Machine, Processes, Sample, control_group

LOWEST_PRIORITY = 19
FILE = "telemetry.jsonl"


class Sources:
    """All that a sample is made of."""

    def __init__(self, harness_pid: int, *, server_metrics: bool) -> None:
        self._harness_pid = harness_pid
        self._server_metrics = server_metrics
        self._gpus = Gpus()
        self._energy = CpuEnergy()
        self._machine, self._processes = Machine(), Processes()
        self._engine: Mapping[str, Any] = {}

    @property
    def absent(self) -> dict[str, str]:
        found = {"gpu": self._gpus.absent, "cpu_energy": self._energy.absent}
        if not self._server_metrics:
            found["server_metrics"] = "not asked for; telemetry.server_metrics=true asks"
        return {name: why for name, why in found.items() if why}

    def follow(self, engine: Mapping[str, Any]) -> None:
        self._engine = engine
        self._processes.look_again()

    def sample(self) -> Sample:
        sample: Sample = {"t_ns": time.perf_counter_ns(), **self._machine.read(), **self._energy.read()}
        if run := self._processes.read(self._harness_pid):  # all that belongs to the run: client, engine, sampler, …
            sample |= {"harness_pid": self._harness_pid, "run_cpu_s": run["cpu_s"]}
        pid = self._engine.get("pid")
        if pid and (engine := self._processes.read(pid)):
            sample |= {"engine_pid": pid, **{f"engine_{name}": value for name, value in engine.items()}}
            sample |= control_group(pid)
        sample |= self._gpus.read()
        if self._server_metrics and (url := self._engine.get("url")):
            from replay.telemetry import metrics

            sample |= metrics.scrape(url)
        return sample | {"sampler_cpu_s": time.process_time()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m replay.telemetry.sampler")
    parser.add_argument("folder", type=Path, help=f"where {FILE} goes")
    parser.add_argument("--every-s", type=float, default=1.0, help="between two samples")
    parser.add_argument("--server-metrics", action="store_true", help="ask the engine for /metrics too")
    arguments = parser.parse_args()
    with contextlib.suppress(OSError):
        os.nice(LOWEST_PRIORITY)
    found = Sources(os.getppid(), server_metrics=arguments.server_metrics)
    with (arguments.folder / FILE).open("a", buffering=1) as file:
        if file.tell():  # an earlier sampler may have been killed within a line
            file.write("\n")
        _write(file, {"absent": found.absent, "every_s": arguments.every_s})
        due_s = time.monotonic()
        while True:
            _write(file, found.sample())
            due_s += arguments.every_s * (1 + max(0, time.monotonic() - due_s) // arguments.every_s)
            if not _wait_until(due_s, found):
                break
        _write(file, found.sample())


def _write(file: Any, row: Mapping[str, Any]) -> None:
    file.write(json.dumps(row) + "\n")


def _wait_until(due_s: float, found: Sources) -> bool:
    """Wait for the next sample's time, take in what the harness says; False when it says no more."""
    while (left_s := due_s - time.monotonic()) > 0:
        if select.select([0], [], [], left_s)[0]:
            said = os.read(0, select.PIPE_BUF)  # a whole line, or several: each is written at once
            if not said:
                return False
            found.follow(json.loads(said.splitlines()[-1]))
    return True


if __name__ == "__main__":
    main()
