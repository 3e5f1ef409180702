"""Loads of a GPU, through the driver's own library: nothing to install beside the driver.

The calls are those of the CUDA driver API (docs.nvidia.com/cuda/cuda-driver-api).
"""

import ctypes
import time
from typing import Any

_BLOCKING_SYNC = 4  # CU_CTX_SCHED_BLOCKING_SYNC: waiting for the GPU takes no core from the engine
_SM_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_THREADS = 256
_BLOCKS_PER_SM = 4
_LAUNCH_NS = 1_000_000
_COPY_BYTES = 16 << 20

_PTX = b"""
.version 6.0
.target sm_52
.address_size 64
.visible .entry spin(.param .u32 rounds)
{
    .reg .pred %p;
    .reg .b32 %n, %i;
    .reg .f32 %x;
    ld.param.u32 %n, [rounds];
    mov.u32 %i, 0;
    mov.f32 %x, 0f3F000000;
AGAIN:
    fma.rn.f32 %x, %x, %x, %x;
    fma.rn.f32 %x, %x, 0fBF000000, %x;
    add.u32 %i, %i, 1;
    setp.lt.u32 %p, %i, %n;
    @%p bra AGAIN;
    setp.eq.f32 %p, %x, 0f49742400;
    @%p trap;
    ret;
}
"""
"""Multiply-adds in registers. The comparison at the end only keeps them from being left out."""


class _Gpu:
    """The first visible GPU, current in this thread.

    Raises:
        OSError: no driver, no GPU, or one that refuses.
    """

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxSetFlags_v2", device, _BLOCKING_SYNC)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        sms = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(sms), _SM_COUNT, device)
        self.sms = sms.value

    def call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._driver, name)(*arguments):
            text = ctypes.c_char_p()
            self._driver.cuGetErrorName(code, ctypes.byref(text))
            raise OSError(f"{name}: {(text.value or b'unknown error').decode()}")


class Compute:
    """Keeps every multiprocessor busy with short kernels; the level is of wall time."""

    moved_bytes = 0

    def __init__(self) -> None:
        self._gpu = _Gpu()
        module = ctypes.c_void_p()
        self._kernel = ctypes.c_void_p()
        self._gpu.call("cuModuleLoadData", ctypes.byref(module), _PTX)
        self._gpu.call("cuModuleGetFunction", ctypes.byref(self._kernel), module, b"spin")
        self._rounds = 10_000
        for _ in range(4):  # the first launches load the kernel and raise the clocks
            took_ns = max(self._launch(), 1)
            self._rounds = max(1, min(int(self._rounds * _LAUNCH_NS / took_ns), 1 << 30))

    def _launch(self) -> int:
        begun = time.perf_counter_ns()
        rounds = ctypes.c_uint32(self._rounds)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(rounds))
        blocks = self._gpu.sms * _BLOCKS_PER_SM
        self._gpu.call("cuLaunchKernel", self._kernel, blocks, 1, 1, _THREADS, 1, 1, 0, None, arguments, None)
        self._gpu.call("cuCtxSynchronize")
        return time.perf_counter_ns() - begun

    def work(self, ns: int) -> int:
        took = 0
        while took < ns:
            took += self._launch()
        return took


class Copies:
    """Copies from pinned host memory to the GPU, as an upload of experts does; the level is of wall time."""

    def __init__(self) -> None:
        self.moved_bytes = 0
        self._gpu = _Gpu()
        self._host, self._device = ctypes.c_void_p(), ctypes.c_uint64()
        self._gpu.call("cuMemHostAlloc", ctypes.byref(self._host), ctypes.c_size_t(_COPY_BYTES), 0)
        self._gpu.call("cuMemAlloc_v2", ctypes.byref(self._device), ctypes.c_size_t(_COPY_BYTES))

    def work(self, ns: int) -> int:
        begun = now = time.perf_counter_ns()
        while now - begun < ns:
            self._gpu.call("cuMemcpyHtoD_v2", self._device, self._host, ctypes.c_size_t(_COPY_BYTES))
            self.moved_bytes += _COPY_BYTES
            now = time.perf_counter_ns()
        return now - begun
