"""The engine: a model whose hot experts lie on the device, one sequence kept from turn to turn."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.ostinato.backend import BackendError, Interrupted, Prefill
from engines.ostinato.background import EVERY, Background
from engines.ostinato.experts import Experts
from engines.ostinato.forward import Forward
from engines.ostinato.prefix import common_prefix
from engines.ostinato.resizing import Resizing
from engines.ostinato.vocabulary import Vocabulary

if TYPE_CHECKING:
    from engines.ostinato.decode_graph import DecodeGraph

# Shapes: V = vocabulary.

CHUNK = 2048
GPU_CHUNK = 8192
"""A pass of 7,000 tokens in one piece took 20 ms a layer on an H200 instead of 48 in four: nearly every cold expert
is uploaded in each piece."""


class Engine:
    """A ``Backend``. Greedy and deterministic.

    Keys and values always cover ``cached_ids``: a pass that failed or was interrupted leaves at most more than that,
    which the next call cuts off.
    """

    def __init__(
        self,
        forward: Forward,
        groups: Sequence[Experts],
        vocabulary: Vocabulary,
        *,
        name: str,
        vocab_size: int,
        context: int,
        eos_ids: frozenset[int],
        chunk: int = CHUNK,
        graph: "DecodeGraph | None" = None,
        backgrounds: Sequence[Background] = (),
        resizing: Resizing | None = None,
    ) -> None:
        self.name, self.vocab_size, self.context, self.eos_ids = name, vocab_size, context, eos_ids
        self.interrupt: Callable[[], bool] | None = None
        self.chunk = chunk
        """Most tokens of one forward pass; bounds the memory of a prefill."""
        self.groups = tuple(groups)
        """By device and expert size."""
        self.backgrounds = tuple(backgrounds)
        """Of each group."""
        self.cached_ids: list[int] = []
        self.graph = graph
        self.resizing = resizing
        self._forward = forward
        self._vocabulary = vocabulary
        self._logits_V = torch.empty(0)
        self._pass = 1
        """Tokens of the last prefill's last pass."""

    @property
    def experts(self) -> Experts:
        """The only group: one device, one expert size."""
        (only,) = self.groups
        return only

    @property
    def background(self) -> Background | None:
        """Of the only group."""
        return next(iter(self.backgrounds), None) if len(self.groups) == 1 else None

    def prefill(self, prompt_ids: Sequence[int]) -> Prefill:
        """Keep what the sequence shares with the prompt, compute the rest in chunks.

        The prompt's last token is always computed, since its logits choose the first output token.
        """
        prompt = list(prompt_ids)
        cached, held = min(common_prefix(self.cached_ids, prompt), len(prompt) - 1), len(self.cached_ids)
        del self.cached_ids[cached:]
        if self.resizing is not None:
            self.resizing.at_barrier(peak_tokens=held, held=cached)
        for group in self.groups:
            group.begin_request()
        for background in self.backgrounds:
            background.before_prefill()
        next_id = -1
        for start in range(cached, len(prompt), self.chunk):
            if start > cached and self.interrupt is not None and self.interrupt():
                raise Interrupted
            next_id = self._append(prompt[start : start + self.chunk])
            self._pass = min(self.chunk, len(prompt) - start)
        return Prefill(cached_tokens=cached, new_tokens=len(prompt) - cached, next_id=next_id)

    def step(self, token_id: int) -> int:
        """Decode one token."""
        return self._append([token_id])

    def decode(self, first_id: int, count: int, forced_ids: Sequence[int] | None) -> Iterator[int]:
        """See ``backend.Decodes``; captured steps where there is a graph."""
        token = first_id
        graph_steps = (
            self.graph.run(first_id, count, forced_ids, len(self.cached_ids)) if self.graph and count else None
        )
        before = self._uses()
        for i in range(count):
            if graph_steps is not None:
                choice = next(graph_steps)
                self.cached_ids.append(token)
            else:
                if i and i % EVERY == 0 and not all(background.idle for background in self.backgrounds):
                    before = self._between_steps(before)
                choice = self.step(token)
            yield choice
            token = choice if forced_ids is None else forced_ids[i]

    def _uses(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Each group's routes of single steps so far: those that the CPU computed, and all."""
        return [(group.cpu_uses_LE.copy(), group.uses_LE.copy()) for group in self.groups]

    def _between_steps(self, before: list[tuple[np.ndarray, np.ndarray]]) -> list[tuple[np.ndarray, np.ndarray]]:
        uses = self._uses()
        for background, (cpu, every), (cpu_before, every_before) in zip(self.backgrounds, uses, before, strict=True):
            background.at_boundary(cpu - cpu_before, every - every_before, EVERY)
        return uses

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Append tokens; the logits after the last one, ``[V]``."""
        try:
            logits_V = self._forward.logits(ids, len(self.cached_ids))
            for group in self.groups:
                group.finish()
        except torch.OutOfMemoryError as error:
            raise BackendError(
                f"out of device memory at {len(self.cached_ids) + len(ids)} tokens; lower --vram-budget's share of "
                "experts, --context or --chunk"
            ) from error
        self.cached_ids.extend(ids)
        self._logits_V = logits_V
        return logits_V

    def last_logits(self) -> NDArray[np.float32]:
        """See ``backend.Scores``."""
        logits: NDArray[np.float32] = self._logits_V.float().cpu().numpy()
        return logits

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for."""
        return self._vocabulary.bytes_of(token_id)

    def encode(self, text: str) -> list[int]:
        """A text's ids."""
        return self._vocabulary.encode(text)

    def timings(self) -> dict[str, float | int | str]:
        """What the last request cost the CPU's pool and the link."""
        groups = self.groups
        return {
            "path": self._path(),
            "cpu_experts_n": sum(group.cpu_experts for group in groups),
            "cpu_ms": sum(group.cpu_ns for group in groups) / 1e6,
            "uploads_n": sum(group.uploads for group in groups),
            "borrowed_hits_n": sum(background.borrowed_hits for background in self.backgrounds),
            "resident_n": sum(int(group.pool.resident_LE.sum()) for group in groups),
            **(self.resizing.timings() if self.resizing is not None else {}),
        }

    def reset(self) -> None:
        """Forget the sequence."""
        self.cached_ids.clear()

    def _path(self) -> str:
        """What the last prefill did with its cold experts."""
        experts = self.groups[0]
        if experts.staging is None:
            return "split"
        return experts.shares.kind(experts.policy.prefill_path(self._pass).kind)

    def _append(self, ids: list[int]) -> int:
        return int(self.logits(ids).argmax())
