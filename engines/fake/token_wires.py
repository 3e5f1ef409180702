"""How the engines that need a GPU put tokens, their end and the counts into events: SGLang, vLLM, FreeToken.

From their documentation and source, as their dialects are: no stream of theirs was recorded here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from engines.fake.wires import DONE, Completions, Payload


@dataclass(frozen=True, slots=True, kw_only=True)
class SgLang:
    """``/generate`` with ``--incremental-streaming-output``: each event holds its own ids and all counts."""

    dialect: ClassVar[str] = "sglang"
    prompt_tokens: int
    cached_tokens: int

    def tokens(self, ids: Sequence[int], produced: int) -> Payload:
        return self._event(ids, produced, None)

    def opening(self) -> tuple[Payload, ...]:
        return (self.empty(0),)

    def empty(self, produced: int) -> Payload:
        return self._event([], produced, None)

    def finish(self, generated: int, reason: str = "length") -> Payload:
        return self.finishing([], generated, reason)

    def finishing(self, ids: Sequence[int], generated: int, reason: str = "length") -> Payload:
        """The last tokens and the finish in one event, as SGLang sends them."""
        return self._event(ids, generated, {"type": reason, "length": generated})

    def tail(self, generated: int) -> tuple[Payload | bytes, ...]:
        return self.finish(generated), DONE

    def _event(self, ids: Sequence[int], produced: int, finish_reason: Payload | None) -> Payload:
        meta = {
            "id": "0",
            "finish_reason": finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": produced,
            "cached_tokens": self.cached_tokens,
        }
        return {"text": "", "output_ids": list(ids), "meta_info": meta}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm(Completions):
    """``/inference/v1/generate``: choices of token ids without text."""

    dialect: ClassVar[str] = "vllm"

    def _chunk(self, **fields: object) -> Payload:
        return {"request_id": self.name, **fields}

    def _choice(self, ids: Sequence[int], finish_reason: str | None = None) -> Payload:
        return {"index": 0, "token_ids": list(ids), "logprobs": None, "finish_reason": finish_reason}

    def opening(self) -> tuple[Payload, ...]:
        return (self._chunk(choices=[], usage=None),)

    def finishing(self, ids: Sequence[int], generated: int, reason: str = "length") -> Payload:  # noqa: ARG002
        """The last tokens and the finish in one event, as vLLM sends them."""
        return self._chunk(choices=[self._choice(ids, reason)])

    def usage(self, generated: int) -> Payload:
        return self._chunk(choices=[], usage=self._counts(generated))


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeToken(Completions):
    """``/v1/completions`` behind the forcing hook: ids and the prompt's counts where the text would be."""

    dialect: ClassVar[str] = "freetoken"

    def tokens(self, ids: Sequence[int], produced: int) -> Payload:
        counts = f"\0prompt:{self.prompt_tokens}:{self.cached_tokens}" if produced == len(ids) else ""
        text = counts + "".join(f"\0id:{token}" for token in ids)
        return self._chunk(choices=[{"text": text, "index": 0, "finish_reason": None, "logprobs": None}])

    def _choice(self, ids: Sequence[int], finish_reason: str | None = None) -> Payload:
        assert not ids
        return {"text": "", "index": 0, "finish_reason": finish_reason, "logprobs": None}

    def opening(self) -> tuple[Payload, ...]:
        return (self.empty(0),)

    def usage(self, generated: int) -> Payload:
        """It leaves the cached tokens out where there are none, and without ``--enable-cache-report``."""
        counts = {name: value for name, value in self._counts(generated).items() if name != "prompt_tokens_details"}
        return self._chunk(choices=[], usage=counts)
