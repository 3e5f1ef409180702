"""What watching a run costs: the sampler's CPU at several rates, and the lag probe's in the event loop that measures.

    python benchmarks/telemetry_cost.py
    python benchmarks/telemetry_cost.py --seconds 30 --threads 500

The sampler follows a process tree of ``--processes`` with ``--threads`` each, all idle. Its cost is its own CPU time
between two samples, its start left out; that of the probe is the CPU time of a loop that does nothing else, above
that of the same loop without a probe. The target is 1 % of a core for both together at one sample a second.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from replay.lag import PERIOD_NS, LagProbe
from replay.telemetry.recorder import Recorder
from replay.telemetry.settings import TelemetrySettings
from replay.telemetry.store import read
from replay.watch import sampler_cpu_share

TARGET = 0.01
RATES_S = (1.0, 0.1)
IDLE = """
import subprocess, sys, threading
processes, threads = int(sys.argv[1]), int(sys.argv[2])
again = [*sys.orig_argv[:-2], "0", str(threads)]
children = [subprocess.Popen(again, stdin=subprocess.PIPE) for _ in range(processes)]
for _ in range(threads - 1):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print(flush=True)
sys.stdin.read()
for child in children:
    child.communicate()
"""


def sampler_cost(every_s: float, seconds: float, pid: int) -> tuple[float, int, dict[str, str]]:
    """``(CPU seconds a second, samples, what this machine does not show)``."""
    with tempfile.TemporaryDirectory() as name:
        recorder = Recorder(Path(name), TelemetrySettings(every_s=every_s))
        recorder.start()
        recorder.follow({"pid": pid, "url": ""})
        time.sleep(seconds)
        recorder.stop()
        found = read(Path(name))
    share = sampler_cpu_share(found)
    if recorder.error or share is None:
        raise SystemExit(f"telemetry_cost: {recorder.error or 'too few samples; raise --seconds'}")
    return share, len(found.rows), dict(found.absent)


def loop_cost(seconds: float, *, probed: bool) -> float:
    """CPU seconds a second of an idle event loop."""

    async def idle() -> float:
        probe = LagProbe()
        if probed:
            probe.start()
        before_s = time.process_time()
        await asyncio.sleep(seconds)
        cost_s = time.process_time() - before_s
        probe.stop()
        return cost_s / seconds

    return uvloop.run(idle())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--threads", type=int, default=64)
    arguments = parser.parse_args()
    sizes = [str(arguments.processes - 1), str(arguments.threads)]
    with subprocess.Popen(
        [sys.executable, "-c", IDLE, *sizes], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        print(f"engine: {arguments.processes} processes with {arguments.threads} threads each, idle")
        costs = {}
        for every_s in RATES_S:
            costs[every_s], samples, absent = sampler_cost(every_s, arguments.seconds, engine.pid)
            print(f"sampler, one sample in {every_s:g} s: {costs[every_s]:.3%} of a core ({samples} samples)")
    probe = loop_cost(arguments.seconds, probed=True) - loop_cost(arguments.seconds, probed=False)
    print(f"lag probe, one in {PERIOD_NS / 1e6:g} ms: {probe:.3%} of a core")
    for source, why in absent.items():
        print(f"not in these figures: {source}: {why}")
    whole = costs[1.0] + probe
    print(f"together at 1 s: {whole:.3%}, target {TARGET:.0%}: {'met' if whole < TARGET else 'MISSED'}")
    raise SystemExit(whole >= TARGET)


if __name__ == "__main__":
    main()
