"""vLLM's log: averages over its own intervals of about ten seconds, all requests together."""

import re
from collections.abc import Iterable, Iterator

from analysis.server_logs.requests import Log, Window

SERVER = "vLLM"
MARKS = (b"Avg generation throughput",)
_LACKS = (
    "anything of a single request: neither its prefill nor its decode can be told (with --enable-log-requests its "
    "parameters, never its times)",
    "when its requests ran within an interval: an average includes idle time, so it is a lower bound",
)
_AVERAGE = re.compile(rb"Avg generation throughput: ([0-9.]+) tokens/s, Running: (\d+) reqs")


def read(lines: Iterable[bytes]) -> Iterator[Window]:
    for line in lines:
        if average := _AVERAGE.search(line):
            yield Window(int(average[2]), float(average[1]))


def lacks(_log: Log) -> tuple[str, ...]:
    return _LACKS
