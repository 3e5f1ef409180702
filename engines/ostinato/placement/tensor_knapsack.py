"""Tensor knapsack: the tensors that gain most per byte stay on the GPU; others are copied for a round when it pays.

The method of ATSInfer: a knapsack with a penalty for every switch of device places tensors once; then, before a
round, measured times decide which tensors of the host to copy while others run, and the decision is revised when the
times deviate by ε = 15 %, at most every five output tokens. For mixture-of-experts models it places attention first
and treats all experts of an operator alike. Ours differs in the unit: a slot holds an expert's three matrices
together, so a layer's expert block is one tensor here, and a round that promotes a layer copies the chosen experts
of that layer only, as theirs does. The dense weights are always on the GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.placement.knapsack import place, promote
from engines.ostinato.placement.policy import MemoryBudget, Policy, PrefillPath, first_fit, upload_from
from engines.ostinato.planner.routes import RouteCounts

_UNIT = 1 << 20


@dataclass(kw_only=True)
class TensorKnapsack(Policy):
    name: ClassVar[str] = "tensor_knapsack"

    epsilon: float = 0.15
    """How far the times must deviate before rounds are scheduled anew."""
    interval_steps: float = 5.0
    """Least time between two schedules, in recent times per output token."""
    switch_ms: float = 0.01
    """Carrying one token's activations to the other device."""
    dynamic: bool = True
    upload_threshold: int = 512

    _resident_L: NDArray[np.bool_] | None = field(default=None, init=False, repr=False)
    _layers: range = field(default=range(0), init=False, repr=False)
    _experts_per_token: int = field(default=1, init=False, repr=False)
    _previous_ms: NDArray[np.float64] | None = field(default=None, init=False, repr=False)
    _scheduled_ms: float = field(default=0.0, init=False, repr=False)
    _fetched: frozenset[int] = field(default=frozenset(), init=False, repr=False)

    def residents(self, budget: MemoryBudget, counts: RouteCounts | None) -> NDArray[np.bool_]:  # noqa: ARG002
        """Without a calibration a layer gains as much as any other, and the first that fit are taken."""
        self._layers, self._experts_per_token = budget.layers, budget.experts_per_token
        mine = list(budget.layers)
        if self.calibration is None:
            resident = first_fit(mine, budget)
        else:
            costs = self.calibration.costs()
            k = budget.experts_per_token
            gain = np.broadcast_to(costs.alpha + costs.beta * k - costs.gpu, (len(budget.expert_bytes),))[mine]
            sizes = [-(-budget.experts * budget.expert_bytes[layer] // _UNIT) for layer in mine]
            # Attention between two layers is on the GPU: a layer on the CPU switches there and back.
            on_gpu = place(sizes, list(gain + 2 * self.switch_ms), [0.0] * len(mine), budget.pool_bytes // _UNIT)
            resident = budget.nobody
            resident[np.array(mine)[on_gpu]] = True
        self._resident_L = resident[mine, 0]
        return resident

    def prefill_path(self, tokens: int) -> PrefillPath:
        return upload_from(tokens, self.upload_threshold)

    def fetched_layers(self, layers_ms: Sequence[float], now_ms: float) -> frozenset[int]:
        if not self.dynamic or self.calibration is None or self._resident_L is None:
            return frozenset()
        measured = np.asarray(layers_ms, np.float64)
        if self._previous_ms is not None:
            deviation = float(np.max(np.abs(measured - self._previous_ms) / np.maximum(self._previous_ms, 1e-9)))
            step_ms = float(measured.sum()) + self.calibration.dense_step_ms
            if deviation < self.epsilon or now_ms - self._scheduled_ms < self.interval_steps * step_ms:
                return self._fetched
        self._previous_ms, self._scheduled_ms = measured, now_ms
        self._fetched = self._schedule(measured)
        return self._fetched

    def _schedule(self, measured_ms: NDArray[np.float64]) -> frozenset[int]:
        """Attention and experts alternate: attention is what hides a copy."""
        assert self.calibration is not None
        assert self._resident_L is not None
        mine = list(self._layers)
        costs, count = self.calibration.costs(), len(mine)
        layers = len(measured_ms)
        resident = np.ones(2 * count, bool)
        resident[1::2] = self._resident_L
        attention = np.full(count, self.calibration.dense_step_ms / max(layers, 1))
        # What ran on the CPU was measured there; what was fetched or resident was not, and keeps its calibrated time.
        k = self._experts_per_token
        calibrated = np.broadcast_to(costs.alpha + costs.beta * k, (layers,))
        ran_on_cpu = np.array(
            [not here and layer not in self._fetched for here, layer in zip(self._resident_L, mine, strict=True)]
        )
        cpu = np.where(ran_on_cpu, measured_ms[mine], calibrated[mine])
        gpu = np.broadcast_to(costs.gpu, (layers,))[mine]
        upload = k * self.calibration.upload_ms_L[mine]

        def interleaved(even: NDArray[np.float64], odd: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.stack([even, odd], axis=1).ravel()

        runs = promote(
            resident,
            interleaved(attention, cpu),
            interleaved(attention, gpu),
            np.full(2 * count, self.switch_ms),
            interleaved(np.zeros(count), upload),
        )
        promoted = runs[1::2] & ~self._resident_L
        return frozenset(layer for layer, on_gpu in zip(mine, promoted, strict=True) if on_gpu)
