"""Token ids for traces of lengths and block hashes: equal hashes give equal ids, so prefixes are shared."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.session import Turn, TurnKind, WorkloadError

_BLOCK, _FREE = 0, 1
"""What a draw is for: a block's ids depend on its hash alone, all others on how many were drawn before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """A model call of a session of which only lengths and hashes are known."""

    kind: TurnKind
    blocks: Sequence[int]
    """Hash of each block of the prompt; the last may be partly filled, or the prompt may end without a hash."""
    input_length: int
    output_length: int
    """In tokens; both positive."""
    tool_wait_s: float | None = None


class TraceIds:
    """Ids of the blocks of one scope, within which equal hashes mean equal tokens."""

    def __init__(self, vocab: range, *, seed: int, block_size: int, scope: int = 0) -> None:
        """Draw from ``vocab``, uniformly.

        Args:
            scope: not negative; equal hashes of different scopes have nothing in common.

        Raises:
            WorkloadError: no ids to draw from, a negative seed, or a block size that is not positive.
        """
        if not vocab:
            raise WorkloadError("the tokenizer leaves no plain ids to draw from; use another tokenizer")
        if seed < 0:
            raise WorkloadError(f"workload.seed={seed}: set it to 0 or more")
        if block_size < 1:
            raise WorkloadError(f"block_size={block_size}: set it to 1 or more")
        self._vocab = vocab
        self._seed = (seed, scope)
        self._block_size = block_size
        self._seen: set[int] = set()
        self._grown: dict[int, NDArray[np.int64]] = {}
        """Blocks that begin with what stood there before they were full."""
        self._free = 0

    def turns(self, calls: Iterable[TracedCall]) -> Iterator[Turn]:
        """Yield a session's turns.

        A prompt that goes on from the whole prompt before it holds that one's output too, where it is long enough.
        Its new hashes then stand for blocks that earlier tokens fill in part: they begin with those tokens.
        """
        prompt = output = np.empty(0, np.int64)
        hashed: Sequence[int] = ()
        for call in calls:
            before = np.concatenate((prompt, output))
            # Too short to hold the answer: it was dropped on the way, as reasoning is.
            context = prompt if call.input_length < len(before) else before
            if (same := _alike(hashed, call.blocks)) < len(hashed):
                context = context[: same * self._block_size]
            prompt = self._prompt(call, context)
            hashed = call.blocks[: call.input_length // self._block_size]
            output = self._draw(_FREE, self._next_free(), call.output_length)
            # A prompt that adds nothing asks for its last token again.
            kept = min(_common(before, prompt), len(prompt) - 1)
            yield Turn(
                kind=call.kind,
                kept_ids=None if kept == len(before) else kept,
                delta_ids=tuple(prompt[kept:].tolist()),
                output_ids=tuple(output.tolist()),
                tool_wait_s=call.tool_wait_s,
            )

    def _prompt(self, call: TracedCall, context: NDArray[np.int64]) -> NDArray[np.int64]:
        parts: list[NDArray[np.int64]] = []
        goes_on = True
        for start, block in zip(range(0, call.input_length, self._block_size), call.blocks, strict=False):
            there = context[start : start + self._block_size] if goes_on else context[:0]
            part = self._block(block, there)[: call.input_length - start]
            goes_on = goes_on and bool((part[: len(there)] == there[: len(part)]).all())
            parts.append(part)
        start = sum(map(len, parts))
        if rest := call.input_length - start:
            there = context[start : start + rest] if goes_on else context[:0]
            parts += [there, self._draw(_FREE, self._next_free(), rest - len(there))]
        return np.concatenate(parts)

    def _block(self, block: int, there: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids of a block; a hash that was not seen before stands for what is there already, and more."""
        if block in self._grown:
            return self._grown[block]
        ids = self._draw(_BLOCK, block, self._block_size)
        if block not in self._seen:
            self._seen.add(block)
            if len(there):
                ids[: len(there)] = there
                self._grown[block] = ids
        return ids

    def _next_free(self) -> int:
        self._free += 1
        return self._free

    def _draw(self, use: int, number: int, count: int) -> NDArray[np.int64]:
        rng = np.random.default_rng([*self._seed, use, number])
        return rng.integers(self._vocab.start, self._vocab.stop, size=count)


def _alike(a: Sequence[int], b: Sequence[int]) -> int:
    return next((number for number, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _common(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """How many ids two sequences begin with alike."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length
