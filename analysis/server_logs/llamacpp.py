"""llama-server's timings of each request, as its versions and forks wrote them since 2023.

``prompt eval time = 4301.16 ms / 4200 tokens (…)`` and then ``eval time = 197.43 ms / 33 tokens (…)``, each

- behind ``slot print_timing: id  1 | task 50 |`` (2026);
- under one such line that holds nothing else (2024, 2025);
- behind ``INFO [ print_timings]`` or in JSON, the second one as ``generation eval time = … / 33 runs`` (2023, 2024,
  and ik_llama.cpp);
- behind ``llama_print_timings:``, where runs are decode steps (2023).

The time of ``eval time`` begins with the first generated token, so n tokens are n − 1 steps of it. Newer versions
print that rate; older ones print n / time.
"""

import re
from collections.abc import Iterable, Iterator

from analysis.server_logs.requests import Log, LoggedRequest

SERVER = "llama.cpp"
MARKS = (b"eval time",)
_TIMING = re.compile(rb"(prompt |generation )?eval time\s*=\s*([0-9.]+) ms /\s*(\d+) (?:tokens|runs)")
_SLOT = re.compile(rb"id\s+(\d+) \| task\s+(-?\d+) \|")
_OLD_SLOT = re.compile(rb'"?(?:id_slot|slot_id)"?[=:]\s*(\d+)')
_ROUTED = re.compile(rb"^\[(\d+)\] ")
"""llama-server as a router puts the port of the server behind it before each of its lines."""


def read(lines: Iterable[bytes]) -> Iterator[LoggedRequest]:
    """Requests in the order they ended. A prefill whose ``eval time`` is missing has no decode."""
    waiting: dict[bytes, tuple[int, float]] = {}
    for line in lines:
        timing = _TIMING.search(line)
        if timing is None:
            continue
        key = _key(line)
        seconds, tokens = float(timing[2]) / 1e3, int(timing[3])
        if timing[1] == b"prompt ":
            if key in waiting:
                yield _request(waiting.pop(key), None, steps=None)
            waiting[key] = (tokens, seconds)
        else:
            steps = tokens if b"llama_print_timings" in line else tokens - 1
            yield _request(waiting.pop(key, None), (tokens, seconds), steps=steps)
    for prompt in waiting.values():
        yield _request(prompt, None, steps=None)


def lacks(_log: Log) -> tuple[str, ...]:
    return ()


def _key(line: bytes) -> bytes:
    """What tells requests apart that are served at once; lines without it follow each other."""
    if slot := _SLOT.search(line):
        return b"%s/%s" % (slot[1], slot[2])
    if slot := _OLD_SLOT.search(line):
        return slot[1]
    routed = _ROUTED.match(line)
    return routed[0] if routed else b""


def _request(
    prompt: tuple[int, float] | None, generation: tuple[int, float] | None, *, steps: int | None
) -> LoggedRequest:
    new_tokens, prefill_s = prompt or (None, None)
    generated, decode_s = generation or (None, None)
    return LoggedRequest(new_tokens, prefill_s, generated, decode_s, steps)
