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
        experts: Experts,
        vocabulary: Vocabulary,
        *,
        name: str,
        vocab_size: int,
        context: int,
        eos_ids: frozenset[int],
        chunk: int = CHUNK,
        graph: "DecodeGraph | None" = None,
        background: Background | None = None,
    ) -> None:
        self.name, self.vocab_size, self.context, self.eos_ids = name, vocab_size, context, eos_ids
        self.interrupt: Callable[[], bool] | None = None
        self.chunk = chunk
        """Most tokens of one forward pass; bounds the memory of a prefill."""
        self.experts = experts
        self.cached_ids: list[int] = []
        self.graph = graph
        self.background = background
        self._forward = forward
        self._vocabulary = vocabulary
        self._logits_V = torch.empty(0)
        self._pass = 1
        """Tokens of the last prefill's last pass."""

    def prefill(self, prompt_ids: Sequence[int]) -> Prefill:
        """Keep what the sequence shares with the prompt, compute the rest in chunks.

        The prompt's last token is always computed, since its logits choose the first output token.
        """
        prompt = list(prompt_ids)
        cached = min(common_prefix(self.cached_ids, prompt), len(prompt) - 1)
        del self.cached_ids[cached:]
        self.experts.begin_request()
        if self.background is not None:
            self.background.before_prefill()
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
                if i and i % EVERY == 0 and self.background is not None and not self.background.idle:
                    uses = self._uses()
                    self.background.at_boundary(uses[0] - before[0], uses[1] - before[1], EVERY)
                    before = uses
                choice = self.step(token)
            yield choice
            token = choice if forced_ids is None else forced_ids[i]

    def _uses(self) -> tuple[np.ndarray, np.ndarray]:
        """Routes of single steps so far: those that the CPU computed, and all."""
        return self.experts.cpu_uses_LE.copy(), self.experts.uses_LE.copy()

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Append tokens; the logits after the last one, ``[V]``."""
        try:
            logits_V = self._forward.logits(ids, len(self.cached_ids))
            self.experts.finish()
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
        return {
            "path": self._path(),
            "cpu_experts_n": self.experts.cpu_experts,
            "cpu_ms": self.experts.cpu_ns / 1e6,
            "uploads_n": self.experts.uploads,
            "borrowed_hits_n": self.background.borrowed_hits if self.background is not None else 0,
            "resident_n": int(self.experts.pool.resident_LE.sum()),
        }

    def reset(self) -> None:
        """Forget the sequence."""
        self.cached_ids.clear()

    def _path(self) -> str:
        """What the last prefill did with its cold experts."""
        experts = self.experts
        if experts.staging is None:
            return "split"
        return experts.shares.kind(experts.policy.prefill_path(self._pass).kind)

    def _append(self, ids: list[int]) -> int:
        return int(self.logits(ids).argmax())
