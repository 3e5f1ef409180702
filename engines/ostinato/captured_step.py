"""A decode step as CUDA graphs, one a device, each with a mailbox of the CPU pool.

A pass is captured once. Where it goes from one device to the next, the graph of the first ends and that of the next
begins; what is handed over lies in page-locked memory, so GPUs need not reach each other. The graphs follow each
other by events: nothing waits for the host.
"""

import gc
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial

import torch
from torch import Tensor

from engines.ostinato.errors import SetupError
from engines.ostinato.experts import Experts, per_token
from engines.ostinato.forward import OwnKv
from engines.ostinato.handover import KINDS, kernel
from engines.ostinato.lean_layer import Gate
from engines.ostinato.step_memory import DevicePart, GroupPart

# Shapes: K = experts a token, D = hidden size.

RING = 1024
JOIN_TIMEOUT_MS = 2000
_WARM_UPS = 3
_KERNELS = ("route", "join", "emit", "admit", "fetch", "carry", "advance", "choose", "choose_and_route", "join_onto")


class CapturedStep:
    """Steps after whatever ``own`` holds, given to the GPUs one by one.

    Args:
        most: output tokens of one request at most.

    Raises:
        SetupError: a family whose layers ask for more than can be handed over at once.
    """

    def __init__(self, own: OwnKv, groups: Sequence[Experts], *, most: int) -> None:
        self._own, self._K = own, per_token(own.model.config)
        hidden, dtype = groups[0].pool.store.layout.hidden, own.model.dtype
        self.parts = [DevicePart(device, hidden, dtype, self._K) for device in own.stages.devices]
        by_device = {part.device: part for part in self.parts}
        self.groups = [GroupPart(group, by_device[group.pool.device], dtype, self._K) for group in groups]
        first, last = self.parts[0].device, self.parts[-1].device
        self._several = len(self.parts) > 1
        self._token_11 = torch.zeros(1, 1, dtype=torch.int64, device=first)
        self.forced = torch.zeros(most, dtype=torch.int64, device=last)
        self._forcing = torch.zeros(1, dtype=torch.int32, device=last)
        self._step = torch.zeros(1, dtype=torch.int64, device=last)
        self.ring = torch.zeros(RING, dtype=torch.int64, pin_memory=True)
        self.done = torch.zeros(1, dtype=torch.int64, pin_memory=True)
        self.failure = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._next = torch.zeros(1, dtype=torch.int64, pin_memory=True) if self._several else self._token_11
        """Where the last device leaves the next step's input."""
        self.logits_V: Tensor = torch.zeros(1, device=last)
        """Of the last step, in place: valid until the next one runs."""
        self._capturing = False

    def arm(self, first_id: int, start: int, forced_ids: Sequence[int] | None) -> None:
        """Begin at position ``start`` with a token; the recorded tokens follow it, where there are any."""
        self._own.at(start)
        self._step.zero_()
        self._forcing.fill_(forced_ids is not None)
        if forced_ids is not None:
            given = torch.tensor(list(forced_ids), dtype=torch.int64).pin_memory()
            self.forced[: len(given)].copy_(given, non_blocking=True)
        for item in self.groups:
            if item.lru is not None:
                item.lru.load()
        self.synchronize()
        self.done[0] = 0
        self._next.fill_(first_id)
        self.synchronize()

    def launch(self) -> None:
        """Give the GPUs one step."""
        if not self._several:
            self.parts[0].graph.replay()
            return
        before = self.parts[-1]
        for part in self.parts:
            with torch.cuda.device(part.device):
                stream = torch.cuda.current_stream(part.device)
                stream.wait_event(before.done)
                part.graph.replay()
                part.done.record(stream)
            before = part

    def synchronize(self) -> None:
        """Wait for what the GPUs were given."""
        for part in self.parts:
            torch.cuda.current_stream(part.device).synchronize()

    def clear(self) -> None:
        """Forget a failure; nothing may run."""
        self.failure[0] = 0
        for part in self.parts:
            part.clear()
        self.synchronize()

    def capture(self) -> None:
        """The CPU's service must run."""
        own, stages = self._own, self._own.stages
        own.at(0)
        for part in self.parts:
            with torch.cuda.device(part.device):
                for name in _KERNELS:
                    kernel(name)
        stance = torch.compiler.set_stance("force_eager" if own.compiled == "none" else "default")
        usual, stages.cross = stages.cross, self._cross
        for item in self.groups:
            item.group.captured = partial(self._moe, item)
            item.group.captured_onto = partial(self._moe_onto, item)
            item.branch.pdl = own.lean is not None and own.lean.pdl
        self.synchronize()
        try:
            with torch.inference_mode(), stance, ExitStack() as current:
                for part in reversed(self.parts):  # the first device's last, so that it is the current one
                    current.enter_context(torch.cuda.stream(part.stream))
                for _ in range(_WARM_UPS):
                    self._pass()
                gc.collect()  # what would be freed while capturing is freed now
                torch.cuda.empty_cache()
                self._capturing = True
                self._pass()
        finally:
            self._capturing = False
            stages.cross = usual
            for item in self.groups:
                item.group.captured = item.group.captured_onto = None
                item.branch.pdl = False
        for part in self.parts:
            torch.cuda.current_stream(part.device).wait_stream(part.stream)
        if self.failure[0] != 0:
            self.clear()
        for item in self.groups:
            item.uses_LE.zero_()

    def _pass(self) -> None:
        own, last = self._own, self._own.sequences[self.parts[-1].device]
        with own.stages.running(), ExitStack() as undone:
            self._begin(self.parts[0])
            undone.callback(self._abandon)
            if self._several:
                _carry(self._next, self._token_11)
            output = own.model(
                input_ids=self._token_11,
                position_ids=own.sequence.position_1[None],
                use_cache=False,
                logits_to_keep=1,
            )
            self.logits_V = output.logits[0, -1]
            choice = self.logits_V.argmax()
            kernel("emit")(
                (1, 1, 1), (1, 1, 1),
                [choice, self._next, self.forced, self._forcing, self._step, last.position_1, last.length_1,
                 self.ring, RING, self.done],
            )  # fmt: skip
            self._end(self.parts[-1])
            undone.pop_all()

    def _abandon(self) -> None:
        """A pass failed: leave no capture open, which would spoil all that follows."""
        if self._capturing:
            with suppress(RuntimeError):
                self.parts[self._own.stages.at].graph.capture_end()

    def _begin(self, part: DevicePart) -> None:
        if self._capturing:
            part.graph.capture_begin()

    def _end(self, part: DevicePart) -> None:
        if self._capturing:
            part.graph.capture_end()
        else:
            part.stream.synchronize()

    def _cross(self, left: int, entered: int, tensors: list[Tensor]) -> list[Tensor]:
        """One graph ends, the next begins (stages.Cross)."""
        if entered != left + 1:
            raise SetupError(
                f"{type(self._own.model).__name__}: a decode step can't be captured on several GPUs, since a layer "
                "asks an earlier device for more than its input; start with --no-graph, or name one GPU with --device"
            )
        before, part = self.parts[left], self.parts[entered]
        whole = [tensor.contiguous() for tensor in tensors]
        if not self._capturing:
            part.incoming = [torch.zeros(t.nbytes, dtype=torch.uint8, pin_memory=True) for t in whole]
        assert [held.nbytes for held in part.incoming] == [tensor.nbytes for tensor in whole], "as in the warm-up"
        for tensor, held in zip(whole, part.incoming, strict=True):
            _carry(tensor, held)
        sequence = self._own.sequences[before.device]
        kernel("advance")((1, 1, 1), (1, 1, 1), [sequence.position_1, sequence.length_1])
        self._end(before)
        torch.cuda.set_device(part.device)
        self._begin(part)
        copies = [torch.empty(t.shape, dtype=t.dtype, device=part.device) for t in whole]
        for held, copy in zip(part.incoming, copies, strict=True):
            _carry(held, copy)
        return copies

    def _moe(self, item: GroupPart, layer: int, x_1D: Tensor, ids_1K: Tensor, weights_1K: Tensor) -> Tensor:
        group, part = item.group, item.part
        x_1D, ids_1K, weights_1K = x_1D.contiguous(), ids_1K.contiguous(), weights_1K.contiguous()
        out_1D = torch.empty_like(x_1D)
        if item.lru is not None:
            item.lru.admit(layer, ids_1K, weights_1K, part.addresses_K, part.weights_K, item.uses_LE[layer])
            item.branch.one(x_1D, part.addresses_K, part.weights_K, item.h_KI, part.out_D)
            out_1D.copy_(part.out_D[None])
            return out_1D
        number = group.layers[layer]
        kernel("route")(
            (1, 1, 1), (256, 1, 1),
            [ids_1K, weights_1K, KINDS[weights_1K.dtype], x_1D, group.pool.table_LE[layer], part.addresses_K,
             part.weights_K, item.uses_LE[layer], part.post.request, part.sequence, part.pending, number, self._K,
             x_1D.nbytes // 16],
        )  # fmt: skip
        if not group.policy.overlapped:
            self._join(part, number, part.no_D, part.cpu_1D)
        item.branch.one(x_1D, part.addresses_K, part.weights_K, item.h_KI, part.out_D)
        if group.policy.overlapped:
            self._join(part, number, part.out_D, out_1D)
        else:
            out_1D.copy_(part.out_D + part.cpu_1D)
        return out_1D

    def _moe_onto(
        self, item: GroupPart, layer: int, gate: Gate, x_1D: Tensor, logits_E: Tensor, residual_1D: Tensor
    ) -> Tensor:
        """A lean layer's experts (lean_layer.py): ``_moe`` with the choice before it and the sum after it."""
        group, part = item.group, item.part
        if item.lru is not None or not group.policy.overlapped:
            return residual_1D + self._moe(item, layer, x_1D, *gate.choose(logits_E))
        out_1D = torch.empty_like(x_1D)
        number = group.layers[layer]
        kernel("choose_and_route")(
            (1, 1, 1), (gate.threads, 1, 1),
            [logits_E, KINDS[logits_E.dtype], gate.E, int(gate.among), KINDS[gate.weights], x_1D,
             group.pool.table_LE[layer], part.addresses_K, part.weights_K, item.uses_LE[layer], part.post.request,
             part.sequence, part.pending, number, self._K, x_1D.nbytes // 16],
        )  # fmt: skip
        item.branch.one(x_1D, part.addresses_K, part.weights_K, item.h_KI, part.out_D)
        kernel("join_onto")(
            (1, 1, 1), (512, 1, 1),
            [part.out_D, part.post.response, part.sequence, part.pending, residual_1D, out_1D, KINDS[out_1D.dtype],
             out_1D.shape[1], number, part.failed, self.failure, JOIN_TIMEOUT_MS],
        )  # fmt: skip
        return out_1D

    def _join(self, part: DevicePart, number: int, gpu_D: Tensor, out_1D: Tensor) -> None:
        kernel("join")(
            (1, 1, 1), (512, 1, 1),
            [gpu_D, part.post.response, part.sequence, part.pending, out_1D, KINDS[out_1D.dtype], out_1D.shape[1],
             number, part.failed, self.failure, JOIN_TIMEOUT_MS],
        )  # fmt: skip


def _carry(source: Tensor, target: Tensor) -> None:
    """Copy bytes on the current device, to or from page-locked memory."""
    kernel("carry")((1, 1, 1), (512, 1, 1), [source, target, source.nbytes])
