"""One answer: prefill, then one step a token, with the clock around both."""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter_ns

from engines.ostinato.backend import Backend, Prefill, Stops
from engines.ostinato.request import CompletionRequest


@dataclass(frozen=True, slots=True)
class Token:
    """An output token and the text that became complete with it."""

    id: int
    text: str


class Generation:
    """Iterates over the output tokens of one request, each computed when it is asked for.

    Leaving the iteration at any point is safe: the backend's cache is valid after every step. A forced token
    replaces the model's choice after the step was computed in full.
    """

    def __init__(self, backend: Backend, request: CompletionRequest) -> None:
        self._backend = backend
        self._request = request
        self._eos = backend.eos_ids if isinstance(backend, Stops) and not request.ignore_eos else frozenset[int]()
        self._prefill: Prefill | None = None
        self._started_ns = 0
        self._first_ns = 0
        self._last_ns = 0
        self._tokens = 0
        self._agreed = 0
        self.finish_reason = "length"

    def __iter__(self) -> Iterator[Token]:
        request, step, token_bytes = self._request, self._backend.step, self._backend.token_bytes
        forced, last = request.forced_ids, request.max_tokens - 1
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._started_ns = perf_counter_ns()
        self._prefill = self._backend.prefill(request.prompt_ids)
        token = choice = self._prefill.next_id
        self._first_ns = self._last_ns = perf_counter_ns()
        for i in range(request.max_tokens):
            if i:
                choice = step(token)
                self._last_ns = perf_counter_ns()
            if forced is None:
                token = choice
                if token in self._eos:
                    self.finish_reason = "stop"
            else:
                token = forced[i]
                self._agreed += token == choice
            self._tokens = i + 1
            ends = i == last or self.finish_reason == "stop"
            yield Token(token, decode(token_bytes(token), final=ends))
            if ends:
                return

    def usage(self) -> dict[str, object]:
        """The OpenAI ``usage`` object."""
        assert self._prefill is not None, "asked before the prefill"
        prompt = len(self._request.prompt_ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._tokens,
            "total_tokens": prompt + self._tokens,
            "prompt_tokens_details": {"cached_tokens": self._prefill.cached_tokens},
        }

    def timings(self) -> dict[str, float | int | str]:
        """llama.cpp's words where it has them. ``predicted_ms`` runs from the first token to the last, so it covers
        ``predicted_n - 1`` steps; ``agreed_n`` counts the forced tokens that the model would have chosen itself."""
        assert self._prefill is not None, "asked before the prefill"
        timings: dict[str, float | int | str] = {
            "cached_n": self._prefill.cached_tokens,
            "prompt_n": self._prefill.new_tokens,
            "prompt_ms": (self._first_ns - self._started_ns) / 1e6,
            "predicted_n": self._tokens,
            "predicted_ms": (self._last_ns - self._first_ns) / 1e6,
        }
        if self._request.forced_ids is not None:
            timings["agreed_n"] = self._agreed
        return timings | self._backend.timings()

    def summary(self) -> str:
        """One line for the log."""
        t = self.timings()
        return (
            f"prompt {t['prompt_n']} new + {t['cached_n']} cached in {t['prompt_ms']:.1f} ms, "
            f"{t['predicted_n']} tokens in {t['predicted_ms']:.1f} ms"
        )
