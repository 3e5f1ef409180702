"""Mailboxes answered by a Python thread, for the machine without a compiler."""

import ctypes
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from engines.ostinato.cpu.library import MAILBOX_HEADER, MOST_ROUTES, Mailbox, ServiceStats
from engines.ostinato.cpu.native import X_DTYPES

if TYPE_CHECKING:
    from engines.ostinato.cpu.torch_path import TorchCpuExperts

# Shapes: D = model width, L = layers, E = experts.


class TorchService:
    """:class:`~engines.ostinato.cpu.library.Service`.

    It writes in the program's order, which the memory of x86 keeps; on other processors a reader could see the
    sequence before the values.
    """

    def __init__(self, experts: "TorchCpuExperts", tables: NDArray[np.int64], mailboxes: Sequence[Mailbox]):
        self._experts, self._tables, self._boxes = experts, tables, [_Box(box, experts) for box in mailboxes]
        self._counts = np.zeros(tables.shape, np.int64)
        self._jobs = self._computed = self._busy_ns = self._longest_ns = 0
        self._stalled = self._stopped = False
        self._awake, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="ostinato-cpu", daemon=True)
        self._thread.start()

    def start(self) -> None:
        """See :class:`~engines.ostinato.cpu.library.Service`."""
        with self._lock:
            for box in self._boxes:
                box.last = int(box.answer[0])
        self._awake.set()

    def park(self) -> None:
        """See :class:`~engines.ostinato.cpu.library.Service`."""
        self._awake.clear()
        with self._lock:
            """What was begun is done."""

    def stall(self, on: bool) -> None:
        """See :class:`~engines.ostinato.cpu.library.Service`."""
        self._stalled = on

    def counts(self, out: NDArray[np.int64]) -> None:
        """See :class:`~engines.ostinato.cpu.library.Service`."""
        with self._lock:
            out[:] = self._counts
            self._counts[:] = 0

    def stats(self) -> ServiceStats:
        """See :class:`~engines.ostinato.cpu.library.Service`."""
        return ServiceStats(self._jobs, self._computed, self._busy_ns, self._longest_ns)

    def stop(self) -> None:
        """See :class:`~engines.ostinato.cpu.library.Service`."""
        self._stopped = True
        self._awake.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._stopped:
            self._awake.wait()
            with self._lock:
                watching = self._awake.is_set() and not self._stalled
                answered = sum(map(self._answer, self._boxes)) if watching else 0
            if not answered:
                time.sleep(0)

    def _answer(self, box: "_Box") -> bool:
        sequence = int(box.request[0])
        if sequence == box.last:
            return False
        began = time.perf_counter_ns()
        layer, count = (int(value) for value in box.request[1:3].view(np.int32))
        experts = box.experts[: max(0, min(count, MOST_ROUTES))].astype(np.int64)
        layers, width = self._tables.shape
        known = 1 <= count <= MOST_ROUTES and 0 <= layer < layers and bool(((experts >= 0) & (experts < width)).all())
        addresses = self._tables[layer, experts] if known else np.zeros(1, np.int64)
        if bool(addresses.all()):
            starts, tokens = np.arange(count + 1, dtype=np.int32), np.zeros(count, np.int32)
            weights = np.array(box.weights[:count])
            self._experts.compute(addresses, starts, tokens, weights, box.x, box.y)
            self._counts[layer, experts] += 1
            self._computed += count
        box.answer[1] = 0 if addresses.all() else 1
        box.last = sequence
        taken = time.perf_counter_ns() - began
        self._jobs += 1
        self._busy_ns += taken
        self._longest_ns = max(self._longest_ns, taken)
        box.answer[0] = sequence
        return True


class _Box:
    """The fields of a mailbox as arrays over its memory."""

    def __init__(self, box: Mailbox, experts: "TorchCpuExperts"):
        hidden, dtype = experts.layout.hidden, X_DTYPES[experts.layout.dtype]
        size = dtype.itemsize * hidden
        request = memoryview((ctypes.c_uint8 * (MAILBOX_HEADER + size)).from_address(box.request_address))
        answer = memoryview((ctypes.c_uint8 * (MAILBOX_HEADER + 4 * hidden)).from_address(box.response_address))
        self.request = np.frombuffer(request, np.uint32, 4)
        self.experts = np.frombuffer(request, np.int32, MOST_ROUTES, offset=16)
        self.weights = np.frombuffer(request, np.float32, MOST_ROUTES, offset=80)
        self.x = torch.frombuffer(request, dtype=dtype, count=hidden, offset=MAILBOX_HEADER)[None]
        self.answer = np.frombuffer(answer, np.uint32, 2)
        self.y = torch.frombuffer(answer, dtype=torch.float32, count=hidden, offset=MAILBOX_HEADER)[None]
        self.last = int(self.answer[0])
