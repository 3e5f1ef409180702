"""A model behind libllama: one sequence's KV cache, kept between requests."""

import ctypes
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from engines.base import EngineError
from engines.libllama.api import PADDING, Api
from engines.ostinato.backend import BackendError, Interrupted, Prefill


class LibllamaBackend(AbstractContextManager["LibllamaBackend"]):
    """Implements ``engines.ostinato.backend.Backend``; leaving it as a context frees model and cache.

    Each step computes the logits of the whole vocabulary and reads their maximum, whatever token comes next: a forced
    run does the work of a free one.
    """

    def __init__(
        self, api: Api, model: Path, *, name: str, context: int, threads: int, batch: int = 2048, ubatch: int = 512
    ) -> None:
        """Load the model.

        Raises:
            EngineError: no such file, not a model this library reads, or no memory for the cache.
        """
        if not model.is_file():
            raise EngineError(f"{model}: no such file; name a GGUF model with --model")
        self.name = name
        self.context = context
        self.interrupt: Callable[[], bool] | None = None
        self._api = api
        self._context_at: int | None = None
        self._model_at = api.load_model(model)
        if self._model_at is None:
            raise EngineError(f"{model}: {name} could not load it; see the lines above", kind="start")
        padded = -(-context // PADDING) * PADDING
        batch = min(batch, padded)
        self._context_at = api.new_context(
            self._model_at, context=context, threads=threads, batch=batch, ubatch=min(ubatch, batch)
        )
        if self._context_at is None:
            self.close()
            raise EngineError(f"{name}: no memory for --context {context}; see the lines above", kind="start")
        got = api.n_ctx(self._context_at)
        if got != padded:
            self.close()
            raise EngineError(
                f"{name}: asked for a context of {padded} tokens, got {got}; choose a smaller --context"
            )
        self.vocab_size: int = api.vocab_size(api.vocab(self._model_at))
        self.eos_ids = frozenset(i for i in range(self.vocab_size) if api.is_end(self._model_at, i))
        self._batch = api.new_batch(batch)
        self._ids: NDArray[np.int32] = np.zeros(padded, np.int32)
        """What the cache holds, up to ``_length``."""
        self._length = 0
        self._logits_at = 0
        self._logits: NDArray[np.float32] = np.zeros(0, np.float32)
        print(
            f"{name}: context {context}, threads {threads}, batch {batch}, ubatch {min(ubatch, batch)}; "
            f"the library's defaults: flash attention {api.flash_attention}, KV cache f16",
            file=sys.stderr,
            flush=True,
        )

    def prefill(self, prompt_ids: Sequence[int]) -> Prefill:
        """Keep the longest common prefix of the cached sequence and the prompt, compute the rest.

        Raises:
            BackendError: the library could not compute; the cache is empty then.
            Interrupted: between two batches; the cache holds what was computed.
        """
        prompt: NDArray[np.int32] = np.asarray(prompt_ids, np.int32)
        keep = self._common(prompt)
        if keep < self._length and not self._cut(keep):
            keep = 0  # a cache that can't be cut in the middle (recurrent layers) starts again
        for start in range(keep, len(prompt), self._batch.size):
            if start > keep and self.interrupt is not None and self.interrupt():
                raise Interrupted
            part = prompt[start : start + self._batch.size]
            self._append(part, logits=start + len(part) == len(prompt))
        return Prefill(cached_tokens=keep, new_tokens=len(prompt) - keep, next_id=self._choice())

    def step(self, token_id: int) -> int:
        """Append a token, compute its logits in full, return the greedy choice after it.

        Raises:
            BackendError: the library could not compute; the cache is empty then.
        """
        self._append(np.asarray((token_id,), np.int32), logits=True)
        return self._choice()

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; empty for special tokens."""
        assert self._model_at is not None, "used after close"
        return self._api.piece(self._model_at, token_id)

    def timings(self) -> dict[str, float | int | str]:
        """Nothing beyond the usual counts."""
        return {}

    def close(self) -> None:
        """Free cache and weights; may be called twice."""
        if self._context_at is not None:
            self._api.free_context(self._context_at)
        if self._model_at is not None:
            self._api.free_model(self._model_at)
        self._context_at = self._model_at = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _common(self, prompt: NDArray[np.int32]) -> int:
        """Tokens of the prompt that are cached; never all of it, because its last token's logits are wanted."""
        n = min(self._length, len(prompt) - 1)
        differs = self._ids[:n] != prompt[:n]
        return int(differs.argmax()) if differs.any() else n

    def _cut(self, position: int) -> bool:
        """Drop the cache from ``position`` on, or, where the library can't, all of it."""
        assert self._context_at is not None, "used after close"
        done = self._api.truncate(self._context_at, position)
        if not done:
            self._api.truncate(self._context_at, 0)
        self._length = position if done else 0
        return done

    def _append(self, ids: NDArray[np.int32], *, logits: bool) -> None:
        end = self._length + len(ids)
        if end > len(self._ids):
            raise BackendError(f"{end} tokens exceed the context of {len(self._ids)}; start with a larger --context")
        status = self._api.decode(self._context_at, self._batch.fill(ids, self._length, logits=logits))
        if status != 0:
            at = self._length
            self._cut(0)
            why = "no room in the KV cache" if status == 1 else f"llama_decode returned {status}"
            raise BackendError(f"{self.name}: {why} for {len(ids)} tokens at position {at}; see the server's log")
        self._ids[self._length : end] = ids
        self._length = end

    def _choice(self) -> int:
        """The largest logit's token, read in the library's own buffer."""
        address = self._api.logits(self._context_at, -1)
        if address != self._logits_at:
            assert address, "the last token of a batch has logits"
            buffer = (ctypes.c_float * self.vocab_size).from_address(address)
            self._logits, self._logits_at = np.ctypeslib.as_array(buffer), address
        return int(self._logits.argmax())
