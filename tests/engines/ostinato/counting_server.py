"""A server over the smallest backend there is: after token n comes n + 1. Run as a script by the tests of serving.

Tokens 0 to 255 are bytes. A prefill that holds SLOW takes a minute, unless it is interrupted; a step after BROKEN
fails.
"""

import sys
import time
from collections.abc import Callable, Sequence

from engines.ostinato.backend import BackendError, Interrupted, Prefill
from engines.ostinato.serving import serve

SLOW, BROKEN, END = 320, 340, 360


class CountingBackend:
    """Steps take as long as the command line says."""

    name = "counting"
    vocab_size = 400
    context = 100_000
    eos_ids = frozenset({END})

    def __init__(self, step_s: float) -> None:
        self.interrupt: Callable[[], bool] | None = None
        self._step_s = step_s

    def prefill(self, prompt_ids: Sequence[int]) -> Prefill:
        end = time.monotonic() + (60 if SLOW in prompt_ids else 0)
        while time.monotonic() < end:
            time.sleep(0.01)
            if self.interrupt is not None and self.interrupt():
                raise Interrupted
        return Prefill(cached_tokens=0, new_tokens=len(prompt_ids), next_id=(prompt_ids[-1] + 1) % 400)

    def step(self, token_id: int) -> int:
        if token_id == BROKEN:
            raise BackendError("out of memory at 7 tokens")
        time.sleep(self._step_s)
        return (token_id + 1) % 400

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def timings(self) -> dict[str, float | int | str]:
        return {"path": "counting"}


if __name__ == "__main__":
    serve(CountingBackend(float(sys.argv[1])), host="127.0.0.1", port=0, queue_limit=1)
