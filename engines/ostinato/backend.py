"""What the HTTP server needs from whatever computes: one sequence, prefilled and stepped."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """The outcome of bringing the cache up to a prompt."""

    cached_tokens: int
    """Prompt tokens whose keys and values were still there from the request before."""
    new_tokens: int
    """Prompt tokens computed now; at least 1."""
    next_id: int
    """The greedy choice after the prompt."""


class Backend(Protocol):
    """A model with one sequence's KV cache. Called from one thread at a time."""

    name: str
    vocab_size: int
    context: int
    """Most tokens that prompt and output may hold together."""

    def prefill(self, prompt_ids: Sequence[int]) -> Prefill:
        """Keep the longest common prefix of the cached sequence and the prompt, compute the rest."""

    def step(self, token_id: int) -> int:
        """Append a token, compute its logits in full, return the greedy choice after it."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; empty for special tokens."""

    def timings(self) -> dict[str, float | int | str]:
        """What the last request's final chunk should say beyond the usual counts; may be empty."""


class BackendError(Exception):
    """The backend could not compute (out of memory, a failed decode). The message says what to do."""


class Interrupted(Exception):  # noqa: N818 - no error: somebody asked for it
    """A prefill stopped early because ``interrupt`` said so; the cache holds what was computed."""


@runtime_checkable
class Encodes(Protocol):
    """A backend that also takes text prompts."""

    def encode(self, text: str) -> list[int]:
        """The text's ids, nothing added."""


@runtime_checkable
class Stops(Protocol):
    """A backend that knows which tokens end an answer that is not forced."""

    eos_ids: frozenset[int]


@runtime_checkable
class Interruptible(Protocol):
    """A backend that can leave a long prefill between two chunks."""

    interrupt: Callable[[], bool] | None
    """Asked between chunks of a prefill; true raises ``Interrupted``."""


@runtime_checkable
class Decodes(Protocol):
    """A backend whose steps can follow each other without the host's answer in between."""

    def decode(self, first_id: int, count: int, forced_ids: Sequence[int] | None) -> Iterator[int]:
        """``count`` steps: the first one with ``first_id``, each other with the choice before or the recorded token
        in its place; yields each step's choice. May be left at any time."""


@runtime_checkable
class Scores(Protocol):
    """A backend that shows what a choice was made from."""

    def last_logits(self) -> NDArray[np.float32]:
        """``[vocab_size]``, after the last prefill or ``step``, on the host; valid until the next one."""
