"""NVIDIA GPUs through NVML. ``nvidia-ml-py`` is optional; without it, or without a driver, the reason is kept."""

from collections.abc import Callable
from typing import Any

from replay.telemetry.sources import Sample

MISSING = "nvidia-ml-py is not installed; pip install 'ostinato-replay[gpu]'"


class Gpus:
    """Every GPU that the driver shows. ``absent`` says why there is none.

    Args:
        nvml: the module ``pynvml``, or what behaves like it; imported when None.
    """

    def __init__(self, nvml: Any = None) -> None:
        self.absent: str | None = None
        self._handles: list[Any] = []
        self._nvml = nvml = nvml or _pynvml()
        if nvml is None:
            self.absent = MISSING
            return
        try:
            nvml.nvmlInit()
            self._handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        except nvml.NVMLError as error:
            self.absent = f"NVML: {error}"
            return
        if not self._handles:
            self.absent = "NVML shows no GPU"

    def read(self) -> Sample:
        """Fields ``gpu<i>_…``; what a GPU does not support is left out."""
        sample: Sample = {}
        for index, handle in enumerate(self._handles):
            for fields in self._questions(handle):
                try:
                    answers = fields()
                except self._nvml.NVMLError:  # not supported by this GPU or driver
                    continue
                sample.update({f"gpu{index}_{name}": value for name, value in answers.items()})
        return sample

    def _questions(self, handle: Any) -> list[Callable[[], Sample]]:
        n = self._nvml
        return [
            lambda: _utilisation(n.nvmlDeviceGetUtilizationRates(handle)),
            lambda: {"memory_bytes": n.nvmlDeviceGetMemoryInfo(handle).used},
            lambda: {"power_w": n.nvmlDeviceGetPowerUsage(handle) / 1e3},
            lambda: {"sm_clock_mhz": n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_SM)},
            lambda: {"memory_clock_mhz": n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_MEM)},
            lambda: {"temperature_c": n.nvmlDeviceGetTemperature(handle, n.NVML_TEMPERATURE_GPU)},
            lambda: {"throttle_reasons": n.nvmlDeviceGetCurrentClocksThrottleReasons(handle)},
            lambda: {"pcie_gen": n.nvmlDeviceGetCurrPcieLinkGeneration(handle)},
            lambda: {"pcie_width": n.nvmlDeviceGetCurrPcieLinkWidth(handle)},
            # The driver counts for 20 ms to answer each of these; it answers in KB/s.
            lambda: {"pcie_tx_bytes_per_s": n.nvmlDeviceGetPcieThroughput(handle, n.NVML_PCIE_UTIL_TX_BYTES) * 1024},
            lambda: {"pcie_rx_bytes_per_s": n.nvmlDeviceGetPcieThroughput(handle, n.NVML_PCIE_UTIL_RX_BYTES) * 1024},
        ]


def _pynvml() -> Any:
    try:
        import pynvml
    except ModuleNotFoundError:
        return None
    return pynvml


def _utilisation(rates: Any) -> Sample:
    """Shares of the time since the last sample (NVML: at most a second) in which the GPU computed or moved memory."""
    return {"utilisation": rates.gpu / 100, "memory_utilisation": rates.memory / 100}
