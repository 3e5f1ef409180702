"""What is known of the machine."""

import json
from pathlib import Path

import pytest

from replay import environment, gpu, machine


def test_the_facts_are_json_and_hold_what_a_number_depends_on() -> None:
    facts = json.loads(json.dumps(environment.facts()))
    assert facts["cores"] >= facts["usable_cores"] >= 1
    assert facts["memory_bytes"] > 2**28
    assert facts["python"].startswith("3.")
    assert facts["packages"]["httpx"]


def test_what_is_not_installed_is_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "PACKAGES", ("no-such-package-here",))
    monkeypatch.setenv("PATH", "")
    facts = environment.facts()
    assert facts["packages"] == {"no-such-package-here": None}
    assert facts["gpus"] is None
    assert facts["docker"] is None
    assert facts["commit"] is None
    assert facts["changed_files"] is None


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_machine_is_read_from_the_kernels_files(tmp_path: Path) -> None:
    sys = write(
        tmp_path / "sys",
        {
            "devices/system/cpu/smt/control": "on\n",
            "devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "5700000\n",
            "devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
            "devices/system/node/node0/cpulist": "0-7",
            "devices/system/node/node1/cpulist": "8-15",
            "kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            "fs/cgroup/box/cpu.max": "250000 100000\n",
        },
    )
    proc = write(
        tmp_path / "proc",
        {
            "cpuinfo": "processor: 0\nmodel name\t: Made-up 9000\n",
            "sys/kernel/numa_balancing": "1\n",
            "self/cgroup": "0::/box\n",
        },
    )
    found = machine.machine(sys, proc)
    assert {name: found[name] for name in ("cpu", "smt", "max_mhz", "governor", "numa_nodes", "numa_balancing")} == {
        "cpu": "Made-up 9000", "smt": "on", "max_mhz": 5700.0, "governor": "powersave", "numa_nodes": 2,
        "numa_balancing": "1",
    }  # fmt: skip
    assert (found["huge_pages"], found["cpu_quota_cores"]) == ("madvise", 2.5)


def test_what_a_machine_does_not_tell_is_null(tmp_path: Path) -> None:
    found = machine.machine(tmp_path, tmp_path)
    for name in (
        "cpu",
        "smt",
        "max_mhz",
        "governor",
        "numa_nodes",
        "numa_balancing",
        "huge_pages",
        "cpu_quota_cores",
    ):
        assert found[name] is None


NVIDIA_SMI = """\
NVIDIA GeForce RTX 4090, 565.57.01, Disabled, [N/A], 24564, 450.00, 3105, 10501, 4, 16, 210, 405, 1, 16, 34, 11.20
NVIDIA A10, 565.57.01, Enabled, [Not Supported], 23028, 150.00, 1695, 6251, 4, 16, 1695, 6251, 4, 8, [N/A], 61.00
"""


def test_gpus_are_read_from_nvidia_smi_and_what_one_does_not_tell_is_null() -> None:
    asked: list[tuple[str, ...]] = []

    def ask(command: tuple[str, ...]) -> str:
        asked.append(command)
        return NVIDIA_SMI.strip()

    first, second = gpu.gpus(ask) or []
    assert first["name"] == "NVIDIA GeForce RTX 4090"
    assert first["driver"] == "565.57.01"
    assert (first["memory_mib"], first["power_limit_w"]) == (24564.0, 450.0)
    assert (first["pcie_gen"], first["max_pcie_gen"], first["pcie_width"]) == (1.0, 4.0, 16.0)
    assert first["mig"] is None
    assert (second["temperature_c"], second["power_w"]) == (None, 61.0)
    fields = asked[0][1].removeprefix("--query-gpu=").split(",")
    assert len(fields) == len(first)
    assert set(gpu.CONSTANT) <= set(first)


def test_no_nvidia_smi_is_no_gpu() -> None:
    assert gpu.gpus(lambda command: None) is None


def test_the_clock_pair_is_read_together() -> None:
    first, second = environment.clock_pair(), environment.clock_pair()
    drift_ns = (second["wall_ns"] - first["wall_ns"]) - (second["perf_ns"] - first["perf_ns"])
    assert abs(drift_ns) < 50_000_000
