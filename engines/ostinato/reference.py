"""The reference stage: a transformers model as it is, with a KV cache that lasts from turn to turn.

Slow and plain on purpose: later stages must choose the same tokens.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from engines.ostinato import fewer_copies
from engines.ostinato.backend import BackendError, Interrupted, Prefill
from engines.ostinato.cache import argument_name, new_cache, truncate
from engines.ostinato.errors import SetupError
from engines.ostinato.prefix import common_prefix
from engines.ostinato.vocabulary import Vocabulary

# Shapes: T = new tokens, V = vocabulary.


class ReferenceBackend:
    """One sequence on one device. Greedy and deterministic.

    The cache always holds ``cached_ids``: a forward pass that failed or was interrupted leaves at most more than
    that, which the next call cuts off.
    """

    def __init__(self, model: PreTrainedModel, vocabulary: Vocabulary, *, name: str, context: int) -> None:
        self.name = name
        self.vocab_size: int = model.config.vocab_size
        self.context = context
        eos = model.generation_config.eos_token_id if model.generation_config else None
        self.eos_ids = frozenset([eos] if isinstance(eos, int) else eos or ())
        self.interrupt: Callable[[], bool] | None = None
        self.chunk = 2048
        """Most tokens of one forward pass; bounds the memory of a prefill."""
        self.cached_ids: list[int] = []
        self._model = model
        self._vocabulary = vocabulary
        self._cache = new_cache()
        self._cache_argument = argument_name(model)
        self._logits_V = torch.empty(0)

    def prefill(self, prompt_ids: Sequence[int]) -> Prefill:
        """Keep what the cache shares with the prompt, compute the rest in chunks.

        The prompt's last token is always computed, since its logits choose the first output token.
        """
        prompt = list(prompt_ids)
        cached = min(common_prefix(self.cached_ids, prompt), len(prompt) - 1)
        del self.cached_ids[cached:]
        next_id = -1
        for start in range(cached, len(prompt), self.chunk):
            if start > cached and self.interrupt is not None and self.interrupt():
                raise Interrupted
            next_id = self._append(prompt[start : start + self.chunk])
        return Prefill(cached_tokens=cached, new_tokens=len(prompt) - cached, next_id=next_id)

    def step(self, token_id: int) -> int:
        """Decode one token."""
        return self._append([token_id])

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Append tokens to the cache; the logits after the last one, ``[V]``."""
        truncate(self._cache, len(self.cached_ids))
        with torch.inference_mode():
            ids_1T = torch.tensor([ids], device=self._model.device)
            try:
                output = self._model(
                    input_ids=ids_1T, use_cache=True, logits_to_keep=1, **{self._cache_argument: self._cache}
                )
            except torch.OutOfMemoryError as error:
                raise BackendError(f"out of device memory at {len(self.cached_ids) + len(ids)} tokens") from error
        self.cached_ids.extend(ids)
        self._logits_V = output.logits[0, -1]
        return self._logits_V

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
        """Nothing beyond the usual counts."""
        return {}

    def reset(self) -> None:
        """Forget the sequence."""
        self.cached_ids.clear()

    def _append(self, ids: list[int]) -> int:
        return int(self.logits(ids).argmax())


def load(folder: Path, *, context: int | None, device: str, dtype: str) -> ReferenceBackend:
    """Load a model folder.

    Args:
        context: None takes the model's own.
        device: ``auto`` takes a GPU when there is one.
        dtype: ``auto`` takes the model's own on a GPU and float32 on a CPU. There it is exact for bfloat16 weights,
            and PyTorch's products for a single token are faster (7 instead of 27 µs for 256 x 256).

    Raises:
        SetupError: no model folder, weights missing, context too large, no such device.
    """
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise SetupError(f"{folder / name} is missing; --model must name a Hugging Face model folder")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise SetupError(f"--device {device}: PyTorch finds no CUDA device here; leave --device out")
    if dtype == "auto" and device == "cpu":
        dtype = "float32"
    transformers_logging.disable_progress_bar()
    loader: Any = AutoModelForCausalLM  # its annotations leave out the loading info
    try:
        model, info = loader.from_pretrained(
            folder,
            dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            local_files_only=True,
            output_loading_info=True,
        )
        model = model.to(device).eval()
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise SetupError(f"{folder} can't be loaded on {device}: {str(error).splitlines()[0]}") from error
    if info["missing_keys"]:
        raise SetupError(f"{folder} lacks {len(info['missing_keys'])} weights, such as {min(info['missing_keys'])}")
    limit = model.config.max_position_embeddings
    if context is not None and context > limit:
        raise SetupError(f"--context {context} exceeds the model's {limit} tokens; lower it")
    fewer_copies.install(model)
    vocabulary = Vocabulary(folder / "tokenizer.json")
    name = getattr(model.config, "name", None) or folder.resolve().name
    return ReferenceBackend(model, vocabulary, name=name, context=context or limit)
