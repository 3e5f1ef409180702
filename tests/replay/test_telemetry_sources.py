"""Each source of telemetry: from files written by hand, and from a GPU that answers as NVML does."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from replay.telemetry import metrics
from replay.telemetry.nvml import MISSING, Gpus
from replay.telemetry.sources import CpuEnergy, Machine, Processes, control_group


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


# -- the kernel's counters ------------------------------------------------------------------------------------------


def test_busy_and_stolen_time_are_told_apart(tmp_path: Path) -> None:
    proc = write(
        tmp_path,
        {
            "stat": "cpu  1000 200 300 9999 50 10 20 70 5 5\ncpu0 1 2 3\n",
            "meminfo": "MemTotal: 9 kB\nMemAvailable:    2048 kB\n",
            "devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "3000000",
            "devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "2000000",
            "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "3",
            "devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "4",
        },
    )
    assert Machine(proc, tmp_path).read() == {
        "cpu_busy_s": 15.3,  # guest time is part of user time
        "cpu_steal_s": 0.7,
        "cpu_mhz": 2500.0,
        "cpu_throttles": 7,
        "memory_available_bytes": 2 << 20,
    }


def test_of_a_large_machine_a_few_cores_are_asked(tmp_path: Path) -> None:
    write(tmp_path, {"stat": "cpu  1 2 3 4 5 6 7 8 9 10\n"})
    write(tmp_path, {f"devices/system/cpu/cpu{i}/thermal_throttle/core_throttle_count": "1" for i in range(128)})
    assert Machine(tmp_path, tmp_path).read()["cpu_throttles"] == 8


def test_what_the_kernel_does_not_show_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, {"stat": "cpu  1 2 3 4 5 6 7 8 9 10\n"})
    assert set(Machine(tmp_path, tmp_path).read()) == {"cpu_busy_s", "cpu_steal_s"}


def test_a_process_counts_with_what_it_started(worker: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 10
    processes = Processes()
    while (found := processes.read(worker.pid)).get("cpu_s", 0) < 0.2:
        processes.look_again()
        assert time.monotonic() < until
        time.sleep(0.02)
    assert found["processes"] == 2
    assert found["rss_bytes"] > 1 << 20


def test_a_process_that_is_gone_gives_nothing() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert Processes().read(process.pid) == {}


def test_a_process_that_has_ended_since_counts_in_its_parents_time(tmp_path: Path) -> None:
    def stat(pid: int, parent: int, ticks: int) -> dict[str, str]:
        return {
            f"{pid}/stat": f"{pid} (a (b) c) S {parent} 0 0 0 0 0 0 0 0 0 {ticks} 0 0 0 20 0 1",
            f"{pid}/statm": "9 2 1",
        }

    write(tmp_path, stat(7, 1, 100) | stat(8, 7, 50) | stat(9, 1, 999))
    processes = Processes(tmp_path)
    assert processes.read(7) == {"cpu_s": 1.5, "rss_bytes": 4 * 4096, "processes": 2}
    (tmp_path / "8/stat").unlink()
    assert processes.read(7)["processes"] == 1


def test_a_control_group_is_read_and_the_root_is_none(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "7/cgroup": "0::/box\n",
            "8/cgroup": "0::/\n",
            "fs/cgroup/box/cpu.stat": "usage_usec 1500000\nuser_usec 1\nthrottled_usec 250000\n",
            "fs/cgroup/box/memory.current": "4096\n",
        },
    )
    assert control_group(7, tmp_path, tmp_path) == {
        "cgroup_cpu_s": 1.5,
        "cgroup_throttled_s": 0.25,
        "cgroup_memory_bytes": 4096,
    }
    assert control_group(8, tmp_path, tmp_path) == {}
    assert control_group(9, tmp_path, tmp_path) == {}


def package(folder: Path, uj: int) -> Path:
    zone = "class/powercap/intel-rapl:0"
    return write(
        folder,
        {f"{zone}/name": "package-0\n", f"{zone}/energy_uj": f"{uj}\n", f"{zone}/max_energy_range_uj": "1000000\n"},
    )


def test_cpu_energy_counts_on_when_its_counter_wraps(tmp_path: Path) -> None:
    energy = CpuEnergy(package(tmp_path, 900_000))
    assert energy.absent is None
    assert energy.read() == {"cpu_energy_j": 0.0}
    package(tmp_path, 950_000)
    assert energy.read() == {"cpu_energy_j": 0.05}
    package(tmp_path, 100_000)
    assert energy.read() == {"cpu_energy_j": 0.2}


def test_a_machine_without_an_energy_counter_says_so(tmp_path: Path) -> None:
    energy = CpuEnergy(tmp_path)
    assert energy.read() == {}
    assert "RAPL" in str(energy.absent)


def test_an_energy_counter_that_may_not_be_read_says_how(tmp_path: Path) -> None:
    counter = package(tmp_path, 1) / "class/powercap/intel-rapl:0/energy_uj"
    counter.unlink()
    counter.mkdir()  # as unreadable to root as to anybody
    assert "chmod a+r" in str(CpuEnergy(tmp_path).absent)


# -- GPUs -----------------------------------------------------------------------------------------------------------


class NVMLError(Exception):
    pass


def nvml(**changes: Any) -> Any:
    """One GPU's answers, in the units and shapes that pynvml gives them in."""

    def unsupported(*_: Any) -> Any:
        raise NVMLError("Not Supported")

    answers: dict[str, Any] = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_PCIE_UTIL_TX_BYTES": 0,
        "NVML_PCIE_UTIL_RX_BYTES": 1,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=93, memory=41),
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=24 << 30, free=4 << 30, used=20 << 30),
        "nvmlDeviceGetPowerUsage": lambda _: 287_450,
        "nvmlDeviceGetClockInfo": lambda _, domain: {1: 2520, 2: 10501}[domain],
        "nvmlDeviceGetTemperature": lambda _, sensor: 64,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 4,
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda _: 4,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda _: 16,
        "nvmlDeviceGetPcieThroughput": lambda _, counter: [1000, 2000][counter],
    }
    return SimpleNamespace(**answers | {name: unsupported if v is None else v for name, v in changes.items()})


def test_a_gpus_answers_become_fields_with_units() -> None:
    assert Gpus(nvml()).read() == {
        "gpu0_utilisation": 0.93,
        "gpu0_memory_utilisation": 0.41,
        "gpu0_memory_bytes": 20 << 30,
        "gpu0_power_w": 287.45,
        "gpu0_sm_clock_mhz": 2520,
        "gpu0_memory_clock_mhz": 10501,
        "gpu0_temperature_c": 64,
        "gpu0_throttle_reasons": 4,
        "gpu0_pcie_gen": 4,
        "gpu0_pcie_width": 16,
        "gpu0_pcie_tx_bytes_per_s": 1_024_000,
        "gpu0_pcie_rx_bytes_per_s": 2_048_000,
    }


def test_what_a_gpu_does_not_support_is_left_out() -> None:
    found = Gpus(nvml(nvmlDeviceGetPowerUsage=None, nvmlDeviceGetPcieThroughput=None)).read()
    assert {"gpu0_power_w", "gpu0_pcie_tx_bytes_per_s"}.isdisjoint(found)
    assert found["gpu0_temperature_c"] == 64


def test_no_driver_and_no_gpu_are_reasons() -> None:
    def no_driver() -> None:
        raise NVMLError("NVML Shared Library Not Found")

    assert Gpus(nvml(nvmlInit=no_driver)).absent == "NVML: NVML Shared Library Not Found"
    assert Gpus(nvml(nvmlDeviceGetCount=lambda: 0)).absent == "NVML shows no GPU"


def test_the_real_library_has_every_name_that_is_used() -> None:
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed (extra: gpu)")
    assert [name for name in vars(nvml()) if not hasattr(real, name)] == []


def test_without_the_library_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpus = Gpus()
    assert gpus.absent == MISSING
    assert gpus.read() == {}


# -- a server's metrics ---------------------------------------------------------------------------------------------


def test_series_are_taken_with_their_labels_and_buckets_left_out() -> None:
    text = (
        "# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.\n"
        "# TYPE llamacpp:prompt_tokens_total counter\nllamacpp:prompt_tokens_total 311\n"
        'vllm:kv_cache_usage_perc{engine="0",model_name="a b"} 2.5e-1 1795990000\n'
        'ttft_bucket{le="0.1"} 7\nttft_sum 3.5\nodd nothing\n'
    )
    assert metrics.series(text) == {
        "metrics.llamacpp:prompt_tokens_total": 311.0,
        'metrics.vllm:kv_cache_usage_perc{engine="0",model_name="a b"}': 0.25,
        "metrics.ttft_sum": 3.5,
    }


def test_a_server_that_does_not_answer_gives_no_series() -> None:
    assert metrics.scrape("http://127.0.0.1:9") == {}
