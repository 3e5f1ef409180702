"""What every MoE layer calls for its experts: hot routes on the device, cold ones wherever that ends first.

Registered with transformers once; each experts module carries the number of its layer. Nothing here knows a family.
"""

from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from engines.ostinato.cpu.library import CpuExperts
from engines.ostinato.device_branch import DeviceBranch
from engines.ostinato.host_work import HostWork
from engines.ostinato.lru import Lru
from engines.ostinato.packing import TORCH
from engines.ostinato.placement.policy import Policy
from engines.ostinato.pool import ExpertPool
from engines.ostinato.routes_of_pass import Routes
from engines.ostinato.shares import Shares
from engines.ostinato.staging import Staging

# Shapes: T = tokens, K = experts a token, D = hidden size, L = MoE layers, E = experts.

NAME = "ostinato"


class Experts:
    """The experts of all layers for one device: where they are, and how a pass computes them.

    Args:
        staging: where a pass's uploads go; None where nothing can be uploaded (no room, or no GPU).
    """

    def __init__(
        self,
        pool: ExpertPool,
        branch: DeviceBranch,
        cpu: CpuExperts,
        shares: Shares,
        staging: Staging | None,
        policy: Policy,
    ) -> None:
        self.pool, self.branch, self.cpu, self.shares, self.staging = pool, branch, cpu, shares, staging
        self.policy = policy
        store = pool.store
        self.uses_LE = np.zeros((store.layers, store.experts), np.int64)
        """Routes of single-token passes outside a captured step."""
        self.cpu_uses_LE = np.zeros_like(self.uses_LE)
        """Those of them that the CPU computed."""
        self.prefill_uses_LE = np.zeros_like(self.uses_LE)
        """Routes of passes of several tokens."""
        self.cpu_experts = 0
        """Experts that the CPU computed since the last request began."""
        self.uploads = 0
        """Experts copied to the device since then."""
        self.cpu_ns = 0
        """Time in the CPU's kernels since then."""
        self.captured: Any = None
        """What takes over inside a captured step (decode_graph.py)."""
        self.lru: Lru | None = None
        """Where a miss is fetched into a slot: who was used last."""
        self.early_L: list[np.ndarray] = []
        """Of each layer the cold experts that most passes use, first those used most; empty: none is copied early."""
        self._host_work = HostWork() if pool.device.type == "cuda" else None
        self._room = 0
        self._x_TD = self._ids_TK = self._weights_TK = self._out_TD = torch.empty(0)

    def install(self, modules: tuple[nn.Module, ...]) -> None:
        """Let the model's experts modules come here."""
        for layer, module in enumerate(modules):
            module.ostinato_experts = self  # type: ignore[assignment]
            module.ostinato_layer = layer  # type: ignore[assignment]

    def begin_request(self) -> None:
        """Forget what the last request counted, and what its last layer copied early."""
        if self.staging is not None:
            self.staging.forget()
        self.cpu_experts = self.uploads = self.cpu_ns = 0

    def forward(self, layer: int, x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
        """One layer's output ``[T, D]``."""
        if self.captured is not None:
            out: Tensor = self.captured(layer, x_TD, ids_TK, weights_TK)
            return out
        ids, weights = self._to_host(x_TD, ids_TK, weights_TK)
        T = len(ids)
        if T == 1:
            self.uses_LE[layer, ids[0]] += 1
            return self._one(layer, x_TD, ids_TK, weights_TK, ids[0], weights[0])
        routes = Routes(ids, self.pool.store.experts)
        self.prefill_uses_LE[layer] += routes.counts_E
        return self._several(layer, x_TD, ids_TK, weights_TK, routes, weights)

    def _several(
        self, layer: int, x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, routes: Routes, weights: np.ndarray
    ) -> Tensor:
        """A pass of several tokens: everything is begun before the CPU computes its share."""
        staging, pool, T = self.staging, self.pool, routes.tokens
        path = self.policy.prefill_path(T)
        used = routes.used
        if path.kind == "fetch" and self.lru is not None and self.lru.fits(layer, len(used)):
            self.uploads += self.lru.bring(layer, used.tolist())
        is_hot = (pool.slot_LE[layer, used] >= 0) & path.residents
        hot, cold = used[is_hot], used[~is_hot]
        the_pass = self.branch.begin(x_TD, ids_TK, weights_TK, routes)
        if staging is None:
            on_cpu = cold
        else:
            early = staging.early(layer) if self._copies_early(path.kind) else cold[:0]
            late = cold[~np.isin(cold, early)]
            uploaded, on_cpu = self.shares.split(late, routes.counts_E[late], path.kind)
            if path.kind == "stream":
                rest = np.flatnonzero(pool.slot_LE[layer] < 0)
                uploaded = np.concatenate([uploaded, rest[~np.isin(rest, cold)]])
            staging.start(layer, uploaded)
        the_pass.run(hot, pool.addresses(layer, hot))
        if staging is not None:
            if len(early):
                needed = np.isin(early, cold)
                the_pass.run(early[needed], staging.early_addresses()[needed])
                staging.leave_early()
            self.uploads += len(uploaded) + len(early)
            for experts, addresses in staging.waves():
                the_pass.run(experts, addresses)
            if self._copies_early(path.kind) and layer + 1 < pool.store.layers:
                staging.start_early(layer + 1, self.early_L[layer + 1])
        return the_pass.join(self._on_cpu(layer, on_cpu, routes, weights, T) if len(on_cpu) else None)

    def finish(self) -> None:
        """Wait for the CPU's share of the last pass.

        Raises:
            BackendError: it failed.
        """
        if self._host_work is not None:
            self._host_work.finish()

    def _copies_early(self, kind: str) -> bool:
        return bool(self.early_L) and self.shares.kind(kind) in ("cooperative", "upload")

    def _one(
        self, layer: int, x_1D: Tensor, ids_1K: Tensor, weights_1K: Tensor, ids: np.ndarray, weights: np.ndarray
    ) -> Tensor:
        """A single token, outside a captured step; the same sums in the same order as inside one."""
        store = self.pool.store
        if self.lru is not None:
            self.uploads += self.lru.bring(layer, ids.tolist())
        cold = self.pool.slot_LE[layer, ids] < 0
        if x_1D.is_cuda and self.pool.reads_host:
            cold[:] = False  # its table leads kernels to cold experts as well
        n = int(cold.sum())
        self.cpu_uses_LE[layer, ids[cold]] += 1
        cpu_1D = None
        if n < len(ids):
            device_D = self._hot_one(layer, x_1D, ids_1K, weights_1K, ids, weights, cold)
        if n:
            cpu_1D = self._out_TD[:1]
            self._compute(
                store.addresses[layer, ids[cold]], np.arange(n + 1, dtype=np.int32), np.zeros(n, np.int32),
                np.ascontiguousarray(weights[cold]), 1,
            )  # fmt: skip
        if n == len(ids):
            assert cpu_1D is not None
            return cpu_1D.to(x_1D.device).to(x_1D.dtype)
        total_D = device_D if cpu_1D is None else device_D + cpu_1D[0].to(x_1D.device)
        return total_D.to(x_1D.dtype)[None]

    def _hot_one(
        self, layer: int, x_1D: Tensor, ids_1K: Tensor, weights_1K: Tensor, ids: np.ndarray, weights: np.ndarray,
        cold: np.ndarray,
    ) -> Tensor:  # fmt: skip
        layout = self.pool.store.layout
        if not x_1D.is_cuda:
            from engines.ostinato.device_branch import compute

            slots = self.pool.slot_LE[layer, ids[~cold]]
            outs = [compute(layout, self.pool.block(slot), x_1D)[0].float() for slot in slots]
            return torch.stack([w * out for w, out in zip(weights[~cold].tolist(), outs, strict=True)]).sum(0)
        from engines.ostinato.gpu_branch import TritonBranch

        assert isinstance(self.branch, TritonBranch)
        addresses_K = self.pool.table_LE[layer][ids_1K[0]]
        h_KI = torch.empty(len(addresses_K), layout.width, dtype=x_1D.dtype, device=x_1D.device)
        out_D = torch.empty(layout.hidden, dtype=torch.float32, device=x_1D.device)
        self.branch.one(x_1D.contiguous(), addresses_K, weights_1K[0].float(), h_KI, out_D)
        return out_D

    def _on_cpu(self, layer: int, experts: np.ndarray, routes: Routes, weights: np.ndarray, T: int) -> Tensor:
        chosen_R, starts = routes.gather(experts)
        flat = weights.reshape(-1)
        blocks, tokens = self.pool.store.addresses[layer, experts], chosen_R // routes.per_token
        picked = flat[chosen_R]
        if self._host_work is None:
            self._compute(blocks, starts, tokens, picked, T)
        else:
            self._host_work.begin(lambda: self._compute(blocks, starts, tokens, picked, T))
        return self._out_TD[:T].to(self.pool.device, non_blocking=True)

    def _compute(
        self, blocks: np.ndarray, starts: np.ndarray, tokens: np.ndarray, weights: np.ndarray, T: int
    ) -> None:
        began = perf_counter_ns()
        self.cpu.compute(blocks, starts, tokens, weights, self._x_TD[:T], self._out_TD[:T])
        self.cpu_ns += perf_counter_ns() - began
        self.cpu_experts += len(blocks)

    def _to_host(self, x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """The pass's input where the CPU's kernels read it."""
        T, K = ids_TK.shape
        on_gpu = x_TD.is_cuda
        if self._room < T:
            self._room = max(T, 64)
            D = x_TD.shape[1]
            kind = TORCH.get(self.pool.store.layout.dtype, torch.bfloat16)
            self._x_TD = torch.empty(self._room, D, dtype=kind, pin_memory=on_gpu)
            self._out_TD = torch.empty(self._room, D, dtype=torch.float32, pin_memory=on_gpu)
            self._ids_TK = torch.empty(self._room, K, dtype=torch.int64, pin_memory=on_gpu)
            self._weights_TK = torch.empty(self._room, K, dtype=torch.float32, pin_memory=on_gpu)
        self._x_TD[:T].copy_(x_TD, non_blocking=on_gpu)
        if self._weights_TK.dtype != weights_TK.dtype:
            self._weights_TK = self._weights_TK.to(weights_TK.dtype)
            self._weights_TK = self._weights_TK.pin_memory() if on_gpu else self._weights_TK
        self._weights_TK[:T].copy_(weights_TK, non_blocking=on_gpu)
        self._ids_TK[:T].copy_(ids_TK, non_blocking=on_gpu)
        if on_gpu:
            torch.cuda.current_stream().synchronize()
        return self._ids_TK[:T].numpy(), self._weights_TK[:T].float().numpy()


def per_token(config: Any) -> int:
    """How many experts a token is routed to; families call it differently."""
    names = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")
    return int(next(getattr(config, name) for name in names if getattr(config, name, None)))


def experts_forward(self: nn.Module, x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor) -> Tensor:
    """transformers' experts interface."""
    experts: Experts = self.ostinato_experts  # type: ignore[assignment]
    layer: int = self.ostinato_layer  # type: ignore[assignment]
    return experts.forward(layer, x_TD, ids_TK, weights_TK)


ALL_EXPERTS_FUNCTIONS.register(NAME, torch.compiler.disable(experts_forward))
