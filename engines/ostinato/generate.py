"""One answer: prefill, then one step a token, with the clock around both."""

import codecs
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter_ns

from engines.ostinato import logprobs
from engines.ostinato.backend import Backend, Decodes, Prefill, Scores, Stops
from engines.ostinato.logprobs import Logprobs
from engines.ostinato.request import CompletionRequest

Timings = dict[str, float | int | str]


@dataclass(frozen=True, slots=True)
class Token:
    """An output token and the text that became complete with it."""

    id: int
    text: str
    logprobs: Logprobs | None = None


class Generation:
    """Iterates over the output tokens of one request, each computed when it is asked for.

    Leaving the iteration at any point is safe: the backend's cache is valid after every step. A forced token
    replaces the model's choice after the step was computed in full.

    Args:
        spell: the bytes of a token; None takes the backend's, without special tokens.
    """

    def __init__(
        self, backend: Backend, request: CompletionRequest, spell: Callable[[int], bytes] | None = None
    ) -> None:
        self._backend = backend
        self._request = request
        self._spell = spell or backend.token_bytes
        self._ends = backend.eos_ids if isinstance(backend, Stops) else frozenset[int]()
        self._eos = frozenset[int]() if request.ignore_eos else self._ends
        self._prefill: Prefill | None = None
        self._after_prefill: Timings = {}
        self._started_ns = 0
        self._last_ns = 0
        self._agreed = 0
        self._last_id = -1
        self.first_ns = 0
        """``perf_counter_ns`` when the first token was known; 0 before."""
        self.tokens = 0
        """Computed so far."""
        self.finish_reason = "length"

    def __iter__(self) -> Iterator[Token]:
        request, spell, eos = self._request, self._spell, self._eos
        forced, last = request.forced_ids, request.max_tokens - 1
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._started_ns = perf_counter_ns()
        self._prefill = self._backend.prefill(request.prompt_ids)
        choice = self._prefill.next_id
        self.first_ns = self._last_ns = perf_counter_ns()
        self._after_prefill = self._backend.timings()
        with closing(self._choices(choice if forced is None else forced[0])) as choices:
            for i in range(request.max_tokens):
                if i:
                    choice = next(choices)
                    self._last_ns = perf_counter_ns()
                if forced is None:
                    token = choice
                    if token in eos:
                        self.finish_reason = "stop"
                else:
                    token = forced[i]
                    self._agreed += token == choice
                self._last_id, self.tokens = token, i + 1
                ends = i == last or self.finish_reason == "stop"
                yield Token(token, decode(spell(token), final=ends), self._logprobs(token))
                if ends:
                    return

    def _choices(self, token: int) -> Generator[int, None, None]:
        """The choices after the first one; steps follow each other with the choices or the recorded tokens."""
        count = self._request.max_tokens - 1
        forced = None if self._request.forced_ids is None else self._request.forced_ids[1:]
        # Steps that run ahead would have overwritten the logits of the one that is answered.
        if isinstance(self._backend, Decodes) and self._request.logprobs is None:
            yield from self._backend.decode(token, count, forced)
            return
        for i in range(count):
            choice = self._backend.step(token)
            yield choice
            token = choice if forced is None else forced[i]

    def _logprobs(self, token: int) -> Logprobs | None:
        if self._request.logprobs is None:
            return None
        assert isinstance(self._backend, Scores), "checked with the request"
        return logprobs.of(self._backend.last_logits(), token, self._request.logprobs)

    @property
    def prefill(self) -> Prefill | None:
        """What the prompt took; None before."""
        return self._prefill

    @property
    def ended(self) -> bool:
        """Whether the answer is complete rather than cut off: the last token, forced or not, is one that ends."""
        return self.finish_reason == "stop" or self._last_id in self._ends

    def usage(self) -> dict[str, object]:
        """The OpenAI ``usage`` object."""
        assert self._prefill is not None, "asked before the prefill"
        prompt = len(self._request.prompt_ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self.tokens,
            "total_tokens": prompt + self.tokens,
            "prompt_tokens_details": {"cached_tokens": self._prefill.cached_tokens},
        }

    def timings(self) -> Timings:
        """llama.cpp's words where it has them. ``predicted_ms`` runs from the first token to the last, so it covers
        ``predicted_n - 1`` steps, and so does ``cpu_experts_per_token``; ``agreed_n`` counts the forced tokens that
        the model would have chosen itself. The backend adds its own."""
        assert self._prefill is not None, "asked before the prefill"
        timings: Timings = {
            "cached_n": self._prefill.cached_tokens,
            "prompt_n": self._prefill.new_tokens,
            "prompt_ms": (self.first_ns - self._started_ns) / 1e6,
            "predicted_n": self.tokens,
            "predicted_ms": (self._last_ns - self.first_ns) / 1e6,
        }
        if self._request.forced_ids is not None:
            timings["agreed_n"] = self._agreed
        own = self._backend.timings()
        total, before = own.get("cpu_experts_n"), self._after_prefill.get("cpu_experts_n")
        if isinstance(total, int) and isinstance(before, int) and self.tokens > 1:
            timings["cpu_experts_per_token"] = (total - before) / (self.tokens - 1)
        return timings | own

    def summary(self) -> str:
        """One line for the log."""
        t = self.timings()
        return (
            f"prompt {t['prompt_n']} new + {t['cached_n']} cached in {t['prompt_ms']:.1f} ms, "
            f"{t['predicted_n']} tokens in {t['predicted_ms']:.1f} ms"
        )
