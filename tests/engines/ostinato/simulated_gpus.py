"""GPUs as far as captured steps need them, on the CPU: a graph is a list of operators that is run again.

A device is a thread that works off what its stream was given, so whatever is not ordered by an event or a
synchronisation races as on real ones. The kernels of handover.cu are spelled out in Python; the CPU pool is the real
one. Torch's CUDA functions are replaced within the modules under test.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from simulated_kernels import kernels
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from engines.ostinato import captured_step, decode_graph, grouping, handover, kv, lru_slots, step_memory
from engines.ostinato.device_branch import TorchBranch, block_at, compute
from engines.ostinato.gpu_branch import TritonBranch
from engines.ostinato.stages import Stages

_LIMIT_S = 60.0


class Stream:
    """What one device still has to do, in order."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def give(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def synchronize(self) -> None:
        done = threading.Event()
        self.give(done.set)
        assert done.wait(_LIMIT_S), "the device hangs"
        if self.failed:
            raise self.failed[0]

    def wait_event(self, event: "Event") -> None:
        marks = list(event.marks[-1:])  # as of now: one recorded later is another
        self.give(lambda: [mark.wait(_LIMIT_S) for mark in marks])

    def wait_stream(self, _other: "Stream") -> None:
        """Captures are over when they end."""

    def end(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        with torch.inference_mode():
            while (work := self._work.get()) is not None:
                try:
                    work()
                except BaseException as error:  # noqa: BLE001 - told by synchronize
                    self.failed.append(error)


class Event:
    def __init__(self) -> None:
        self.marks: list[threading.Event] = []

    def record(self, stream: Stream) -> None:
        self.marks.append(threading.Event())
        stream.give(self.marks[-1].set)


class Machine:
    """Two or more devices."""

    def __init__(self, count: int) -> None:
        self.streams = [Stream() for _ in range(count)]
        self.current = 0
        self.recording: list[Callable[[], None]] | None = None
        self.stage: dict[int, tuple[Tensor, int]] = {}
        """Where each tensor was made, by identity."""

    def end(self) -> None:
        for stream in self.streams:
            stream.end()

    def make_current(self, device: Any) -> None:
        self.current = device.index if isinstance(device, torch.device) else device

    def launch(self, work: Callable[[], None]) -> None:
        """A kernel: now, and again in every replay."""
        with _disable_current_modes():
            work()
        if self.recording is not None:
            self.recording.append(work)


class Graph:
    def __init__(self, machine: Machine) -> None:
        self._machine, self._work = machine, []
        self._device = -1

    def capture_begin(self) -> None:
        assert self._machine.recording is None, "one capture at a time"
        self._device = self._machine.current
        self._machine.recording = self._work

    def capture_end(self) -> None:
        assert self._machine.recording is self._work, "it ends where it began"
        assert self._device == self._machine.current
        self._machine.recording = None

    def replay(self) -> None:
        assert self._machine.recording is None
        assert self._work
        work = list(self._work)
        self._machine.streams[self._device].give(lambda: [step() for step in work] and None)


class Operators(TorchDispatchMode):
    """Records operators while a graph is captured, and on which device a tensor was made."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        machine, kwargs = self._machine, kwargs or {}
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        stages = {machine.stage[id(t)][1] for t in inputs if id(t) in machine.stage and t.dim()}
        assert len(stages) <= 1, f"{func} reads tensors of several devices"
        out = func(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        for tensor in outputs:
            if id(tensor) not in {id(t) for t in inputs}:
                machine.stage[id(tensor)] = (tensor, machine.current)
        if machine.recording is not None:
            assert func is not torch.ops.aten._local_scalar_dense.default, "a captured step asks the GPU"
            memory = {t.untyped_storage().data_ptr() for t in inputs}
            fresh = [t.untyped_storage().data_ptr() not in memory for t in outputs]

            def again() -> None:
                new = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor)]
                for old, tensor, is_fresh in zip(outputs, new, fresh, strict=True):
                    if is_fresh:
                        old.copy_(tensor)

            machine.recording.append(again)
        return out


class Branch(TritonBranch):
    """The device branch through PyTorch."""

    machine: Machine

    def begin(self, *args: Any) -> Any:
        return TorchBranch(self.layout).begin(*args)

    def one(self, x_1D: Tensor, addresses_K: Tensor, weights_K: Tensor, h_KI: Tensor, out_D: Tensor) -> None:
        def work() -> None:
            total = torch.zeros(self.layout.hidden)
            for address, weight in zip(addresses_K.tolist(), weights_K.tolist(), strict=True):
                if address:
                    total += weight * compute(self.layout, block_at(address, self.layout.nbytes), x_1D)[0].float()
            out_D.copy_(total)

        self.machine.launch(work)


def _attend_one(machine: Machine, layer: Any, query_HTW: Tensor, key: Tensor, value: Tensor, more: Any) -> Tensor:
    """A single token whose position is only known to the device."""
    sequence, keys, values = layer._sequence, layer._keys_GNW, layer._values_GNV
    at = sequence.position_1
    keys.index_copy_(1, at, key)
    values.index_copy_(1, at, value)
    H, N = query_HTW.shape[0], keys.shape[1]
    share = H // keys.shape[0]
    scores = (query_HTW @ keys.repeat_interleave(share, 0).mT) * more["scale"]
    places = torch.arange(N)
    hidden = places > at
    if more["window"]:
        hidden = hidden | (places <= at - more["window"])
    scores = scores.masked_fill(hidden, float("-inf"))
    if more["sinks_H"] is not None:
        scores = torch.cat([scores, more["sinks_H"][:, None, None]], -1)
    shares = torch.softmax(scores, -1)[..., :N]
    del machine
    return (shares @ values.repeat_interleave(share, 0)).transpose(0, 1)


@contextmanager
def simulated(monkeypatch: pytest.MonkeyPatch, count: int) -> Iterator[Machine]:
    """Within it, captured steps can be built over ``cpu`` devices that have numbers."""
    machine = Machine(count)

    @contextmanager
    def within(number: int) -> Iterator[None]:
        before, machine.current = machine.current, number
        try:
            yield
        finally:
            machine.current = before

    def stream_of(device: torch.device | None = None) -> Stream:
        return machine.streams[machine.current if device is None else device.index or 0]

    cuda = SimpleNamespace(
        CUDAGraph=lambda: Graph(machine), Stream=stream_of, Event=Event, current_stream=stream_of,
        stream=lambda stream: within(machine.streams.index(stream)), device=lambda device: within(device.index or 0),
        set_device=machine.make_current, empty_cache=lambda: None,
    )  # fmt: skip

    class Torch:
        """PyTorch, but for its CUDA functions and page-locked memory."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def zeros(self, *shape: Any, pin_memory: bool = False, **more: Any) -> Tensor:
            return torch.zeros(*shape, **more)

        def tensor(self, *args: Any, **more: Any) -> Any:
            return torch.tensor(*args, **more)

    fake = Torch()
    fake.cuda = cuda  # type: ignore[attr-defined]
    Branch.machine = machine
    monkeypatch.setattr(decode_graph, "_STEP_TIMEOUT_S", _LIMIT_S)
    for module in (captured_step, decode_graph, handover, step_memory):
        monkeypatch.setattr(module, "torch", fake)
    for module in (captured_step, lru_slots):
        monkeypatch.setattr(module, "kernel", kernels(machine.launch))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(grouping, "_branch", lambda layout, on_gpu: Branch(layout))
    monkeypatch.setattr("engines.ostinato.stages._make_current", machine.make_current)
    monkeypatch.setattr(
        Stages, "is_away", lambda _self, t, stage: id(t) in machine.stage and machine.stage[id(t)][1] != stage
    )
    usual, usual_at = kv.LayerKv.attend, kv.Sequence.at

    def attend(self: Any, query: Tensor, key: Tensor, value: Tensor, **more: Any) -> Tensor:
        if key.shape[1] == 1 and self._keys_GNW is not None and getattr(machine, "stepping", False):
            return _attend_one(machine, self, query, key, value, more)
        return usual(self, query, key, value, **more)

    def at(self: Any, start: int) -> None:
        usual_at(self, start)
        self.position_1.fill_(start)
        self.length_1.fill_(start + 1)

    monkeypatch.setattr(kv.LayerKv, "attend", attend)
    monkeypatch.setattr(kv.Sequence, "at", at)
    try:
        yield machine
    finally:
        machine.end()
