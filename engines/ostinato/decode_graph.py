"""Decodes with captured steps, joined with the CPU pool inside them.

Once a layer has routed, its graph sends the cold routes to the resident CPU pool through page-locked memory, computes
the hot ones meanwhile, and waits for the CPU's sum. Input token, position and recorded tokens lie on the GPUs, so
steps follow each other without the host, which reads each chosen token from page-locked memory while the next step
runs.
"""

import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from engines.ostinato.backend import BackendError
from engines.ostinato.background import EVERY, Background
from engines.ostinato.captured_step import JOIN_TIMEOUT_MS, RING, CapturedStep
from engines.ostinato.cpu.library import Service
from engines.ostinato.experts import Experts, whole_LE
from engines.ostinato.forward import OwnKv

# Shapes: L = MoE layers, E = experts.

_AHEAD = 2
"""Steps given to the GPU before the host has seen the first of them."""
_STEP_TIMEOUT_S = 10.0


class DecodeGraph:
    """Decodes after whatever ``own`` holds.

    Args:
        backgrounds: what changes at token boundaries, in each group.
        most: output tokens of one request at most.
    """

    def __init__(
        self, own: OwnKv, groups: Sequence[Experts], backgrounds: Sequence[Background], *, most: int
    ) -> None:
        self._groups, self._backgrounds = tuple(groups), tuple(backgrounds)
        self._step = CapturedStep(own, groups, most=most)
        addresses_LE = whole_LE(groups, lambda group: group.pool.store.addresses)
        layouts = {layer: group.pool.store.layout for group in groups for layer in group.layers}
        self.service: Service = groups[0].cpu.service(
            addresses_LE, [part.post.mailbox for part in self._step.parts], [layouts[n] for n in sorted(layouts)]
        )
        self._uses_host = [
            torch.zeros(group.uses_LE.shape, dtype=torch.int64, pin_memory=True) for group in self._groups
        ]
        self._uses_before = [np.zeros(group.uses_LE.shape, np.int64) for group in self._groups]
        self._recorded_LE = np.zeros(addresses_LE.shape, np.int64)
        self._cpu_uses_LE = np.zeros(addresses_LE.shape, np.int64)
        self.service.start()
        try:
            self._step.capture()
        finally:
            self.service.park()

    @property
    def logits_V(self) -> Tensor:
        """Of the last step, in place: valid until the next one runs."""
        return self._step.logits_V

    def run(self, first_id: int, count: int, forced_ids: Sequence[int] | None, start: int) -> Iterator[int]:
        """``count`` steps from position ``start`` on; yields each step's choice.

        Raises:
            BackendError: the CPU pool did not answer. The next request starts afresh.
        """
        step = self._step
        assert count <= len(step.forced)
        step.arm(first_id, start, None if forced_ids is None else forced_ids[:count])
        done, ring = step.done.numpy(), step.ring.numpy()
        self.service.start()
        launched = decided = 0
        try:
            for i in range(count):
                if i >= decided + EVERY and not all(background.idle for background in self._backgrounds):
                    self._decide(i - decided)
                    decided = i
                while launched < min(count, i + _AHEAD):
                    step.launch()
                    launched += 1
                self._wait(done, i + 1)
                yield int(ring[i % RING])
        finally:
            step.synchronize()
            self.service.park()
            self._count()
            for item in step.groups:
                if item.lru is not None:
                    item.group.uploads += item.lru.settle()

    def recorded(self) -> np.ndarray:
        """Routes ``[L, E]`` of captured steps since the last call."""
        uses = {id(item.group): item.uses_LE.cpu().numpy() for item in self._step.groups}
        counts = whole_LE(self._groups, lambda group: uses[id(group)])
        new: np.ndarray = counts - self._recorded_LE
        self._recorded_LE = counts
        return new

    def _count(self) -> list[np.ndarray]:
        """What the CPU computed since the last call, by group."""
        self.service.counts(self._cpu_uses_LE)
        mine = [self._cpu_uses_LE[list(group.layers)] for group in self._groups]
        for group, uses in zip(self._groups, mine, strict=True):
            group.cpu_experts += int(uses.sum())
            group.cpu_uses_LE += uses
        return mine

    def _decide(self, steps: int) -> None:
        """Between two steps: let the backgrounds see what was used, and move what they want."""
        for n, (cpu_uses_LE, background) in enumerate(zip(self._count(), self._backgrounds, strict=True)):
            uses_LE = cpu_uses_LE
            if background.counts_hits or background.borrowed is not None:
                seen = self._uses_host[n].numpy()
                uses_LE = seen - self._uses_before[n]
                self._uses_before[n] = seen.copy()
                self._uses_host[n].copy_(self._step.groups[n].uses_LE, non_blocking=True)  # seen at the next decision
            background.at_boundary(cpu_uses_LE, uses_LE, steps)

    def _wait(self, done: np.ndarray, wanted: int) -> None:
        deadline = time.monotonic() + _STEP_TIMEOUT_S
        while done[0] < wanted:
            if time.monotonic() > deadline:
                raise BackendError(f"the GPU did not finish a step within {_STEP_TIMEOUT_S:g} s; restart the server")
        if self._step.failure[0] != 0:
            code = int(self._step.failure[0])
            self._recover()
            if code > 0:
                raise BackendError(
                    f"the CPU pool did not answer within {JOIN_TIMEOUT_MS / 1000:g} s in MoE layer {code - 1}; "
                    "its cores are taken by something else: lower --threads"
                )
            raise BackendError(f"the CPU pool refused the routes of MoE layer {-code - 1}")

    def _recover(self) -> None:
        self._step.synchronize()
        self.service.park()
        self._step.clear()
