"""A decode step as one CUDA graph: all layers captured once, joined with the CPU pool inside it.

Once a layer has routed, the graph sends the cold routes to the resident CPU pool through page-locked memory,
computes the hot ones meanwhile, and waits for the CPU's sum. Input token, position and recorded tokens lie on the
GPU, so steps follow each other without the host, which reads each chosen token from page-locked memory while the next
step runs.
"""

import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from engines.ostinato.backend import BackendError
from engines.ostinato.background import EVERY, Background
from engines.ostinato.cpu.library import Service
from engines.ostinato.experts import Experts, per_token
from engines.ostinato.forward import OwnKv
from engines.ostinato.gpu_branch import TritonBranch
from engines.ostinato.handover import KINDS, Post, kernel
from engines.ostinato.lru_slots import LruSlots

# Shapes: K = experts a token, D = hidden size, I = inner width, L = MoE layers, E = experts.

_RING = 1024
_AHEAD = 2
"""Steps given to the GPU before the host has seen the first of them."""
_JOIN_TIMEOUT_MS = 2000
_STEP_TIMEOUT_S = 10.0
_WARM_UPS = 3


class DecodeGraph:
    """Decodes after whatever ``own`` holds.

    Args:
        most: output tokens of one request at most.
        background: what changes at token boundaries.
    """

    def __init__(self, own: OwnKv, experts: Experts, background: Background, *, most: int) -> None:
        assert isinstance(experts.branch, TritonBranch)
        self._background = background
        self._own, self._experts, self._branch = own, experts, experts.branch
        device = experts.pool.device
        layout = experts.pool.store.layout
        self._dtype = own.model.dtype
        self._K = per_token(own.model.config)
        self._post = Post(layout.hidden, self._dtype.itemsize)
        self.service: Service = experts.cpu.service(experts.pool.store.addresses, [self._post.mailbox])

        def whole(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self._token_11, self._forced, self._forcing, self._step = (
            whole(1, 1),
            whole(most),
            whole(1, dtype=torch.int32),
            whole(1),
        )
        self._addresses_K, self._weights_K = whole(self._K), whole(self._K, dtype=torch.float32)
        self._h_KI = whole(self._K, layout.width, dtype=self._dtype)
        self._out_D = whole(layout.hidden, dtype=torch.float32)
        self._no_D = whole(layout.hidden, dtype=torch.float32)
        """Zeros: joined where the branches run in turn."""
        self._cpu_1D = whole(1, layout.hidden, dtype=torch.float32)
        self._sequence, self._pending, self._failed = (whole(1, dtype=torch.int32) for _ in range(3))
        self._uses_LE = whole(*experts.uses_LE.shape)
        self._uses_host = torch.zeros(experts.uses_LE.shape, dtype=torch.int64, pin_memory=True)
        self._recorded_LE = np.zeros(experts.uses_LE.shape, np.int64)
        self._uses_before = np.zeros(experts.uses_LE.shape, np.int64)
        self._cpu_uses_LE = np.zeros(experts.uses_LE.shape, np.int64)
        self._lru = None
        if experts.lru is not None:
            self._lru = LruSlots(experts.lru, self._K)
        self._ring = torch.zeros(_RING, dtype=torch.int64, pin_memory=True)
        self._done = torch.zeros(1, dtype=torch.int64, pin_memory=True)
        self._failure = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self.logits_V: Tensor = whole(1)
        """Of the last step, in place: valid until the next one runs."""
        self._graph = torch.cuda.CUDAGraph()
        self._capture()

    def run(self, first_id: int, count: int, forced_ids: Sequence[int] | None, start: int) -> Iterator[int]:
        """``count`` steps from position ``start`` on; yields each step's choice.

        Raises:
            BackendError: the CPU pool did not answer. The next request starts afresh.
        """
        assert count <= len(self._forced)
        self._own.sequence.at(start)
        self._step.zero_()
        self._done[0] = 0
        self._token_11.fill_(first_id)
        self._forcing.fill_(forced_ids is not None)
        if forced_ids is not None:
            given = torch.tensor(list(forced_ids[:count]), dtype=torch.int64).pin_memory()
            self._forced[: len(given)].copy_(given, non_blocking=True)
        if self._lru is not None:
            self._lru.load()
        torch.cuda.current_stream().synchronize()
        done, ring = self._done.numpy(), self._ring.numpy()
        self.service.start()
        launched = decided = 0
        try:
            for i in range(count):
                if i >= decided + EVERY and not self._background.idle:
                    self._decide(i - decided)
                    decided = i
                while launched < min(count, i + _AHEAD):
                    self._graph.replay()
                    launched += 1
                self._wait(done, i + 1)
                yield int(ring[i % _RING])
        finally:
            torch.cuda.current_stream().synchronize()
            self.service.park()
            self.service.counts(self._cpu_uses_LE)
            self._experts.cpu_experts += int(self._cpu_uses_LE.sum())
            if self._lru is not None:
                self._experts.uploads += self._lru.settle()

    def recorded(self) -> np.ndarray:
        """Routes ``[L, E]`` of captured steps since the last call."""
        counts: np.ndarray = self._uses_LE.cpu().numpy()
        new = counts - self._recorded_LE
        self._recorded_LE = counts
        return new

    def _decide(self, steps: int) -> None:
        """Between two steps: let the background see what was used, and move what it wants."""
        self.service.counts(self._cpu_uses_LE)
        self._experts.cpu_experts += int(self._cpu_uses_LE.sum())
        uses_LE = self._cpu_uses_LE
        if self._background.counts_hits or self._background.borrowed is not None:
            seen = self._uses_host.numpy()
            uses_LE = seen - self._uses_before
            self._uses_before = seen.copy()
            self._uses_host.copy_(self._uses_LE, non_blocking=True)  # seen at the next decision
        self._background.at_boundary(self._cpu_uses_LE, uses_LE, steps)

    def _wait(self, done: np.ndarray, wanted: int) -> None:
        deadline = time.monotonic() + _STEP_TIMEOUT_S
        while done[0] < wanted:
            if time.monotonic() > deadline:
                raise BackendError(f"the GPU did not finish a step within {_STEP_TIMEOUT_S:g} s; restart the server")
        if self._failure[0] != 0:
            code = int(self._failure[0])
            self._recover()
            if code > 0:
                raise BackendError(
                    f"the CPU pool did not answer within {_JOIN_TIMEOUT_MS / 1000:g} s in MoE layer {code - 1}; "
                    "its cores are taken by something else: lower --threads"
                )
            raise BackendError(f"the CPU pool refused the routes of MoE layer {-code - 1}")

    def _recover(self) -> None:
        torch.cuda.current_stream().synchronize()
        self.service.park()
        self._failure[0] = 0
        self._failed.zero_()
        self._sequence.zero_()
        self._post.clear()

    def _capture(self) -> None:
        own, experts = self._own, self._experts
        position_11 = own.sequence.position_1[None]

        def step() -> None:
            output = own.model(input_ids=self._token_11, position_ids=position_11, use_cache=False, logits_to_keep=1)
            self.logits_V = output.logits[0, -1]
            choice = self.logits_V.argmax()
            kernel("emit")(
                (1, 1, 1), (1, 1, 1),
                [choice, self._token_11, self._forced, self._forcing, self._step, own.sequence.position_1,
                 own.sequence.length_1, self._ring, _RING, self._done],
            )  # fmt: skip

        own.sequence.at(0)
        for name in ("route", "join", "emit", "admit", "fetch"):
            kernel(name)
        stance = torch.compiler.set_stance("force_eager" if own.compiled == "none" else "default")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        experts.captured = self._moe
        try:
            with torch.inference_mode(), stance, torch.cuda.stream(stream):
                self.service.start()
                for _ in range(_WARM_UPS):
                    step()
                stream.synchronize()
                with torch.cuda.graph(self._graph, stream=stream):
                    step()
        finally:
            self.service.park()
            experts.captured = None
        torch.cuda.current_stream().wait_stream(stream)
        if self._failure[0] != 0:
            self._recover()
        self._uses_LE.zero_()

    def _moe(self, layer: int, x_1D: Tensor, ids_1K: Tensor, weights_1K: Tensor) -> Tensor:
        experts = self._experts
        x_1D = x_1D.contiguous()
        out_1D = torch.empty_like(x_1D)
        if self._lru is not None:
            self._lru.admit(
                layer, ids_1K.contiguous(), weights_1K.contiguous(), self._addresses_K, self._weights_K, self._uses_LE
            )
            self._branch.one(x_1D, self._addresses_K, self._weights_K, self._h_KI, self._out_D)
            out_1D.copy_(self._out_D[None])
            return out_1D
        kernel("route")(
            (1, 1, 1), (256, 1, 1),
            [ids_1K.contiguous(), weights_1K.contiguous(), KINDS[weights_1K.dtype], x_1D,
             experts.pool.table_LE[layer], self._addresses_K, self._weights_K, self._uses_LE[layer],
             self._post.request, self._sequence, self._pending, layer, self._K, x_1D.nbytes // 16],
        )  # fmt: skip
        if not experts.policy.overlapped:
            self._join(layer, self._no_D, self._cpu_1D)
        self._branch.one(x_1D, self._addresses_K, self._weights_K, self._h_KI, self._out_D)
        if experts.policy.overlapped:
            self._join(layer, self._out_D, out_1D)
        else:
            out_1D.copy_(self._out_D + self._cpu_1D)
        return out_1D

    def _join(self, layer: int, gpu_D: Tensor, out_1D: Tensor) -> None:
        kernel("join")(
            (1, 1, 1), (512, 1, 1),
            [gpu_D, self._post.response, self._sequence, self._pending, out_1D, KINDS[out_1D.dtype],
             out_1D.shape[1], layer, self._failed, self._failure, _JOIN_TIMEOUT_MS],
        )  # fmt: skip
