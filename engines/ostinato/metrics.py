"""What the server tells at ``/metrics``: Prometheus text format 0.0.4.

Written once a request and when asked, never once a token: a running request's tokens are read off its ``Generation``.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping

from engines.ostinato.generate import Generation

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TTFT_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 20, 40, 80, 160)
_TPOT_S = (0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
_OF_BACKEND = {
    "cpu_experts_n": ("ostinato_cpu_experts_total", "Experts computed on the CPU."),
    "uploads_n": ("ostinato_expert_uploads_total", "Experts copied to a GPU for one prefill pass."),
    "borrowed_hits_n": ("ostinato_borrowed_hits_total", "Routes to experts in borrowed memory."),
}
"""Counts of a request in ``Backend.timings``; a series is there only where the backend counts it."""
_RESIDENT = "resident_n"


class Histogram:
    """Counts of observations up to each bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> Iterator[str]:
        """Buckets, sum and count."""
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum}"
        yield f"{name}_count {total}"


class Metrics:
    """Counts since the server started. Safe from any thread."""

    def __init__(self, timings: Mapping[str, float | int | str]) -> None:
        """Args: timings: the backend's, before the first request: says what it counts."""
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._ttft, self._tpot = Histogram(_TTFT_S), Histogram(_TPOT_S)
        self._cached = self._computed = self._tokens = 0
        self._prefill_s = self._decode_s = 0.0
        self._backend: dict[str, int] = {key: 0 for key in _OF_BACKEND if key in timings}
        self._resident = timings.get(_RESIDENT)
        self._running: set[Generation] = set()

    def begins(self, generation: Generation) -> None:
        """The engine turns to a request."""
        with self._lock:
            self._running.add(generation)

    def ends(self, endpoint: str, outcome: str, generation: Generation | None = None, received_ns: int = 0) -> None:
        """A request is over.

        Args:
            outcome: ``complete``, ``failed``, ``left`` (the client did), ``refused`` or ``queue_full``.
            generation: its tokens, where it came to that.
            received_ns: ``perf_counter_ns`` when it had arrived; TTFT counts from then on, waiting included.
        """
        with self._lock:
            self._requests[endpoint, outcome] += 1
            if generation is None:
                return
            self._running.discard(generation)
            if generation.prefill is None:
                return
            self._cached += generation.prefill.cached_tokens
            self._computed += generation.prefill.new_tokens
            self._tokens += generation.tokens
            self._ttft.observe((generation.first_ns - received_ns) / 1e9)
            timings = generation.timings()
            decode_s = float(timings["predicted_ms"]) / 1e3
            if generation.tokens > 1:
                self._tpot.observe(decode_s / (generation.tokens - 1))
            self._prefill_s += float(timings["prompt_ms"]) / 1e3
            self._decode_s += decode_s
            for key in self._backend:
                self._backend[key] += int(timings.get(key, 0))
            self._resident = timings.get(_RESIDENT, self._resident)

    def text(self, *, running: int, waiting: int) -> str:
        """All series.

        Args:
            running, waiting: requests now.
        """
        with self._lock:
            return "\n".join([*self._lines(running, waiting), ""])

    def _lines(self, running: int, waiting: int) -> Iterator[str]:
        name = "ostinato_requests_total"
        yield from _head(name, "counter", "Requests by how they ended.")
        for (endpoint, outcome), count in sorted(self._requests.items()):
            yield f'{name}{{endpoint="{endpoint}",outcome="{outcome}"}} {count}'
        yield from _one("ostinato_requests_running", "gauge", "Requests that compute.", running)
        yield from _one("ostinato_requests_waiting", "gauge", "Requests in the queue.", waiting)
        name = "ostinato_prompt_tokens_total"
        yield from _head(name, "counter", "Prompt tokens taken from the cache, and computed.")
        yield f'{name}{{source="cached"}} {self._cached}'
        yield f'{name}{{source="computed"}} {self._computed}'
        tokens = self._tokens + sum(generation.tokens for generation in self._running)
        yield from _one("ostinato_output_tokens_total", "counter", "Output tokens.", tokens)
        yield from _one("ostinato_prefill_seconds_total", "counter", "Time in prefills.", self._prefill_s)
        yield from _one("ostinato_decode_seconds_total", "counter", "First to last token.", self._decode_s)
        yield from _head("ostinato_ttft_seconds", "histogram", "Request arrived to first token, waiting included.")
        yield from self._ttft.lines("ostinato_ttft_seconds")
        yield from _head(
            "ostinato_tpot_seconds", "histogram", "Mean time per output token after the first, by request."
        )
        yield from self._tpot.lines("ostinato_tpot_seconds")
        for key, value in self._backend.items():
            yield from _one(_OF_BACKEND[key][0], "counter", _OF_BACKEND[key][1], value)
        if self._resident is not None:
            yield from _one("ostinato_resident_experts", "gauge", "Experts in GPU slots.", self._resident)


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _one(name: str, kind: str, text: str, value: float | int | str) -> Iterator[str]:
    yield from _head(name, kind, text)
    yield f"{name} {value}"
