"""Checks on the machine, on telemetry written by hand."""

from typing import Any

import pytest

from replay.telemetry.store import Telemetry
from replay.validity.machine import background_load, clocks_steady, cpu_throttling, gpu_throttling

S = 1_000_000_000


def telemetry(*rows: dict[str, Any], absent: dict[str, str] | None = None) -> Telemetry:
    steady = {"harness_pid": 7, "cpu_steal_s": 0.0, "sampler_cpu_s": 0.0}
    return Telemetry(
        rows=[{"t_ns": i * S, **steady, **row} for i, row in enumerate(rows)], absent=absent or {}, every_s=1.0
    )


def load(*pairs: tuple[float, float], **more: Any) -> Telemetry:
    """Samples of (CPU busy, of the run's own), in seconds since boot."""
    return telemetry(*({"cpu_busy_s": busy, "run_cpu_s": own, **more} for busy, own in pairs))


def test_the_runs_own_load_is_no_background() -> None:
    check = background_load(load((100, 5), (102, 7), (104, 8.95)), cores=2, attached=False)
    assert check.ok is True
    assert check.value == "other programs 0.03 cores, other virtual machines 0.00"  # (4 - 3.95) s in 2 s


def test_other_programs_are_a_warning() -> None:
    check = background_load(load((100, 5), (102, 6), (104, 7)), cores=2, attached=False)
    assert (check.ok, check.severity) == (False, "warning")
    assert check.value.startswith("other programs 1.00 cores")


def test_time_that_other_virtual_machines_took_counts() -> None:
    rows = telemetry({"cpu_busy_s": 0.0, "run_cpu_s": 0.0}, {"cpu_busy_s": 1.0, "run_cpu_s": 1.0, "cpu_steal_s": 0.5})
    assert background_load(rows, cores=2, attached=False).ok is False


def test_the_gap_between_two_commands_is_not_the_runs() -> None:
    rows = load((100, 5), (102, 7)).rows
    later = [{**row, "harness_pid": 9, "t_ns": row["t_ns"] + 99 * S} for row in load((900, 1), (902, 3)).rows]
    check = background_load(Telemetry(rows=[*rows, *later], absent={}, every_s=1.0), cores=2, attached=False)
    assert check.ok is True


@pytest.mark.parametrize(
    ("found", "attached", "why"),
    [
        (None, False, "telemetry.every_s"),
        (load((1, 1)), False, "fewer than two samples"),
        (load((1, 1), (2, 2)), True, "launch=attach"),
    ],
)
def test_what_was_not_measured_is_not_told(found: Telemetry | None, attached: bool, why: str) -> None:
    check = background_load(found, cores=2, attached=attached)
    assert check.ok is None
    assert why in check.value


def test_throttling_is_counted_from_the_first_sample() -> None:
    assert cpu_throttling(telemetry({"cpu_throttles": 40}, {"cpu_throttles": 40})).ok is True
    check = cpu_throttling(telemetry({"cpu_throttles": 40}, {"cpu_throttles": 43}))
    assert (check.ok, check.value) == (False, "3 times")
    assert cpu_throttling(telemetry({}, {})).ok is None


def test_a_gpu_that_a_power_cap_holds_back_is_as_the_user_set_it_but_heat_is_not() -> None:
    capped = {"gpu0_throttle_reasons": 0x4, "gpu0_temperature_c": 61}
    hot = {"gpu0_throttle_reasons": 0x24, "gpu0_temperature_c": 87}
    assert gpu_throttling(telemetry(capped, capped)).ok is True
    check = gpu_throttling(telemetry(capped, hot, capped))
    assert (check.ok, check.value) == (False, "in 1 of 3 samples, at most 87 °C")


def test_a_machine_without_a_gpu_says_why_it_tells_nothing() -> None:
    check = gpu_throttling(telemetry({}, {}, absent={"gpu": "nvidia-ml-py is not installed"}))
    assert (check.ok, check.value) == (None, "nvidia-ml-py is not installed")


def test_clocks_that_fall_are_said_but_not_those_of_an_idle_gpu() -> None:
    def rows(busy: list[float], utilisation: float) -> Telemetry:
        return telemetry(*({"gpu0_sm_clock_mhz": mhz, "gpu0_utilisation": utilisation} for mhz in busy))

    falling = [2000.0] * 3 + [1900.0] * 3 + [1700.0] * 3
    check = clocks_steady(rows(falling, 0.9))
    assert (check.ok, check.value) == (False, "gpu0_sm_clock -15.0%")
    assert clocks_steady(rows(falling, 0.1)).ok is None
    assert clocks_steady(rows([2000.0] * 9, 0.9)).ok is True


def test_five_samples_of_a_clock_are_too_few() -> None:
    assert clocks_steady(telemetry(*({"cpu_mhz": mhz} for mhz in (3000, 2000, 1000, 900, 800)))).ok is None
    assert clocks_steady(telemetry(*({"cpu_mhz": mhz} for mhz in (3000, 2000, 1000, 900, 800, 700)))).ok is False
