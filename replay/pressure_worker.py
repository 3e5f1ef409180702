"""One load of one kind, as a process: ``python -m replay.pressure_worker``, started by ``pressure.py``.

The first line of its input is the order (JSON), the second the clock's zero; it answers ``ready``, or what it lacks.
It ends with its input, at once, whether the harness closed it or was killed. Each phase leaves two lines in the
order's file: when it really began, and when it ended with what was really done.
"""

import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

PERIOD_NS = 10_000_000
"""Work and rest alternate this fast: a token of a fast engine meets both."""
DEBT_NS = 100_000_000
"""Work that could not be done is made up for to this extent, as nobody asked for a burst of seconds."""
_LINGER_S = 1.0
_COPY_BYTES = 128 << 20
_PIECE_BYTES = 4 << 20


class Load(Protocol):
    moved_bytes: int
    """Read and written, so far."""

    def work(self, ns: int) -> int:
        """Work for about ``ns``; return how many it took, on the clock that the level is meant on."""


class Cpu:
    """Computes; the level is of CPU time, so that a worker that has to share its core works on."""

    moved_bytes = 0

    def work(self, ns: int) -> int:
        begun = now = time.thread_time_ns()
        while now - begun < ns:
            for _ in range(100):
                pass
            now = time.thread_time_ns()
        return now - begun


class Memory:
    """Copies through buffers that fit no cache; the level is of wall time."""

    def __init__(self) -> None:
        import numpy as np

        self.moved_bytes = 0
        # Ones, because memory that was never written to is not there yet.
        self._from, self._to = (np.ones(_COPY_BYTES, np.uint8) for _ in range(2))
        self._at = 0

    def work(self, ns: int) -> int:
        begun = now = time.perf_counter_ns()
        while now - begun < ns:
            end = self._at + _PIECE_BYTES
            self._to[self._at : end] = self._from[self._at : end]
            self._at = end % _COPY_BYTES
            self.moved_bytes += 2 * _PIECE_BYTES
            now = time.perf_counter_ns()
        return now - begun


def load(kind: str) -> Load:
    """Raises OSError when there is no GPU to load."""
    if kind == "cpu":
        return Cpu()
    if kind == "memory":
        return Memory()
    from replay import pressure_cuda

    return pressure_cuda.Compute() if kind == "gpu" else pressure_cuda.Copies()


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a phase amounted to."""

    stopped_ns: int
    busy_share: float
    """Of the level's clock: CPU time of one core for ``cpu``, wall time else."""
    cpu_share: float
    """CPU time of this process, of one core."""
    bytes_per_s: float | None


def keep(load: Load, share: float, until_ns: int | None, stop: threading.Event) -> Done:
    """Work ``share`` of the time until ``until_ns`` or ``stop``: in each period as much as is owed by then."""
    begun_ns = now_ns = time.perf_counter_ns()
    cpu_ns, moved = time.process_time_ns(), load.moved_bytes
    worked_ns = forgiven_ns = 0
    while not stop.is_set() and (until_ns is None or now_ns < until_ns):
        owed_ns = int(share * (now_ns - begun_ns)) - worked_ns - forgiven_ns
        forgiven_ns += max(0, owed_ns - DEBT_NS)
        if owed_ns > 0:
            worked_ns += load.work(min(owed_ns, PERIOD_NS))
        left_ns = PERIOD_NS - (time.perf_counter_ns() - now_ns)
        if left_ns > 0:
            stop.wait(left_ns / 1e9)
        now_ns = time.perf_counter_ns()
    wall_ns = max(now_ns - begun_ns, 1)
    moved = load.moved_bytes - moved
    return Done(
        stopped_ns=now_ns,
        busy_share=worked_ns / wall_ns,
        cpu_share=(time.process_time_ns() - cpu_ns) / wall_ns,
        bytes_per_s=moved / wall_ns * 1e9 if moved else None,
    )


def main() -> None:
    order = json.loads(sys.stdin.readline() or "null")
    if order is None:
        return
    try:
        mine = load(order["kind"])
    except OSError as error:
        print(f"pressure of kind {order['kind']} can't be made here: {error}; leave its phases out", flush=True)
        return
    print("ready", flush=True)
    zero = sys.stdin.readline()
    if not zero:
        return
    stop = threading.Event()
    threading.Thread(target=_watch, args=(stop,), daemon=True).start()
    for phase in sorted(order["phases"], key=lambda phase: phase["start_s"]):
        _phase(order, phase, mine, int(zero), stop)


def _watch(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()
    time.sleep(_LINGER_S)
    os._exit(1)  # a load that hangs


def _phase(order: dict[str, Any], phase: dict[str, Any], mine: Load, zero_ns: int, stop: threading.Event) -> None:
    start_ns = zero_ns + int(phase["start_s"] * 1e9)
    if stop.wait(max(0, start_ns - time.perf_counter_ns()) / 1e9):
        return
    until_ns = None if phase["stop_s"] is None else zero_ns + int(phase["stop_s"] * 1e9)
    line = {"phase": phase["number"], "worker": order["worker"], "kind": order["kind"], "level": phase["level"]}
    line["started_ns"] = time.perf_counter_ns()
    _write(order["file"], line)
    done = keep(mine, phase["level"] / 100, until_ns, stop)
    _write(
        order["file"],
        {
            **line,
            "stopped_ns": done.stopped_ns,
            "busy_share": done.busy_share,
            "cpu_share": done.cpu_share,
            "bytes_per_s": done.bytes_per_s,
        },
    )


def _write(file: str, line: dict[str, Any]) -> None:
    """Lines of several workers do not mix: each is one write to the end of the file."""
    with Path(file).open("ab", buffering=0) as lines:
        lines.write(json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    main()
