"""An engine of no model that takes more and more memory: python3 grows.py HOST PORT, where engines/ostinato is."""

import sys
from collections.abc import Sequence

from engines.ostinato.backend import Prefill
from engines.ostinato.serving import serve

QUIET_STEPS = 300
"""A start's self-test and warm-up pass."""


class Grows:
    name = "grows"
    vocab_size = 4096
    context = 32768
    eos_ids = frozenset[int]()

    def __init__(self) -> None:
        self._steps = 0
        self._taken: list[bytearray] = []

    def prefill(self, prompt_ids: Sequence[int]) -> Prefill:
        return Prefill(cached_tokens=0, new_tokens=len(prompt_ids), next_id=1)

    def step(self, token_id: int) -> int:
        self._steps += 1
        if self._steps > QUIET_STEPS:
            self._taken.append(bytearray(b"\1" * (4 << 20)))
        return token_id

    def token_bytes(self, token_id: int) -> bytes:
        return b"x"

    def timings(self) -> dict[str, float | int | str]:
        return {}


serve(Grows(), host=sys.argv[1], port=int(sys.argv[2]))
