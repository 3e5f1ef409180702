"""Checks on the machine, from its telemetry: other programs' load, throttling, clocks."""

from collections.abc import Mapping
from itertools import pairwise
from statistics import median

from replay.telemetry.store import Rows, Telemetry
from replay.validity.check import Check

BACKGROUND = 0.05
"""Of the cores' time, by programs that are neither the engine nor the client, and by other virtual machines."""
CLOCK = 0.05
"""Between the medians of a run's first and last third."""
BUSY = 0.5
"""GPU clocks count while it computes at least so much of the time: an idle GPU lowers them."""
THERMAL = 0x8 | 0x20 | 0x40 | 0x80
"""NVML's reasons for lower clocks that are no wish of the user: hardware slowdown, software and hardware thermal
slowdown, power brake."""
FEWEST_SAMPLES = 6


def background_load(telemetry: Telemetry | None, *, cores: int, attached: bool) -> Check:
    """CPU time that others took while the run lasted.

    Args:
        cores: that this machine has.
        attached: the engine is not ours, so its own time can't be told from that of others.
    """
    name, threshold = "background load", f"at most {BACKGROUND:.0%} of {cores} cores"
    untold = _untold(telemetry) or ("the engine's own load is not known (launch=attach)" if attached else None)
    load = others(telemetry.rows) if telemetry and not untold else None
    if load is None:
        return Check(
            name=name, ok=None, value=untold or "the run was never seen twice", threshold=threshold,
            severity="warning",
        )  # fmt: skip
    programs, steal = load
    ok = programs + steal <= BACKGROUND * cores
    return Check(
        name=name, ok=ok, threshold=threshold, severity="warning",
        value=f"other programs {programs:.2f} cores, other virtual machines {steal:.2f}",
        advice="" if ok else "end other programs, or use a machine of its own, and run again",
    )  # fmt: skip


def others(rows: Rows) -> tuple[float, float] | None:
    """``(cores used by other programs, cores stolen by other virtual machines)``, means over the run.

    The run's own processes are the harness and all that it started: engine, sampler, wanted pressure. None without
    two samples that saw them.
    """
    total_s = programs_s = steal_s = 0.0
    seen = [row for row in rows if "run_cpu_s" in row]
    for before, after in pairwise(seen):
        if after["harness_pid"] != before["harness_pid"]:  # another command went on with the run
            continue
        programs_s += after["cpu_busy_s"] - before["cpu_busy_s"] - (after["run_cpu_s"] - before["run_cpu_s"])
        steal_s += after["cpu_steal_s"] - before["cpu_steal_s"]
        total_s += (after["t_ns"] - before["t_ns"]) / 1e9
    # Below 0 is the coarseness of the kernel's clock ticks.
    return (max(0.0, programs_s) / total_s, steal_s / total_s) if total_s else None


def cpu_throttling(telemetry: Telemetry | None) -> Check:
    name, threshold = "CPU not throttled by heat", "never"
    rows = [row for row in telemetry.rows if "cpu_throttles" in row] if telemetry else []
    if untold := _untold(telemetry) or (None if rows else "this machine does not tell (no thermal_throttle in /sys)"):
        return Check(name=name, ok=None, value=untold, threshold=threshold, severity="warning")
    times = int(rows[-1]["cpu_throttles"] - rows[0]["cpu_throttles"])
    return Check(
        name=name, ok=not times, value=f"{times} times", threshold=threshold, severity="warning",
        advice="cool the machine or lower its clocks, and run again" if times else "",
    )  # fmt: skip


def gpu_throttling(telemetry: Telemetry | None) -> Check:
    name, threshold = "GPU not throttled by heat or power brake", "never"
    reasons = _gpu_fields(telemetry, "throttle_reasons")
    if untold := _untold(telemetry) or (None if reasons else _no_gpu(telemetry)):
        return Check(name=name, ok=None, value=untold, threshold=threshold, severity="warning")
    assert telemetry is not None
    seen = sum(any(int(row.get(field, 0)) & THERMAL for field in reasons) for row in telemetry.rows)
    hottest = max(
        (row[field] for field in _gpu_fields(telemetry, "temperature_c") for row in telemetry.rows if field in row),
        default=None,
    )
    return Check(
        name=name, ok=not seen, threshold=threshold, severity="warning",
        value=f"in {seen} of {len(telemetry.rows)} samples" + (f", at most {hottest:g} °C" if hottest else ""),
        advice="cool the machine, or lock lower clocks (nvidia-smi --lock-gpu-clocks), and run again" if seen else "",
    )  # fmt: skip


def clocks_steady(telemetry: Telemetry | None) -> Check:
    """CPU clocks, and GPU clocks while it computed: medians of the run's first and last third."""
    name, threshold = "clocks steady", f"within {CLOCK:.0%} from the first to the last third"
    changes = clock_changes(telemetry.rows) if telemetry else {}
    if untold := _untold(telemetry) or (
        None if changes else "this machine tells no clocks, or the run was too short"
    ):
        return Check(name=name, ok=None, value=untold, threshold=threshold, severity="warning")
    ok = all(abs(change) <= CLOCK for change in changes.values())
    return Check(
        name=name, ok=ok, threshold=threshold, severity="warning",
        value=", ".join(f"{what} {change:+.1%}" for what, change in changes.items()),
        advice="" if ok else "set the governor to performance and lock the GPU's clocks "
        "(nvidia-smi --lock-gpu-clocks), and run again",
    )  # fmt: skip


def clock_changes(rows: Rows) -> Mapping[str, float]:
    """Clock → its relative change from the first third of the samples to the last."""
    changes = {}
    names = sorted({name for row in rows for name in row if name == "cpu_mhz" or name.endswith("_sm_clock_mhz")})
    for name in names:
        load = name.replace("sm_clock_mhz", "utilisation")
        clocks = [row[name] for row in rows if name in row and (load == name or row.get(load, 0) >= BUSY)]
        third = len(clocks) // 3
        if len(clocks) >= FEWEST_SAMPLES:
            changes[name.removesuffix("_mhz")] = median(clocks[-third:]) / median(clocks[:third]) - 1
    return changes


def _untold(telemetry: Telemetry | None) -> str | None:
    if telemetry is None:
        return "no telemetry was taken; set telemetry.every_s=1"
    return None if len(telemetry.rows) > 1 else "fewer than two samples: too short a run"


def _no_gpu(telemetry: Telemetry | None) -> str:
    return (telemetry.absent.get("gpu") if telemetry else None) or "the driver does not tell"


def _gpu_fields(telemetry: Telemetry | None, field: str) -> list[str]:
    rows = telemetry.rows if telemetry else ()
    return sorted({name for row in rows for name in row if name.startswith("gpu") and name.endswith(f"_{field}")})
