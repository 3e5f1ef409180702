"""SGLang's request log (``--log-requests``, text or JSON) and its lines on decode batches.

``Finish: obj=…, out={'meta_info': {…}}`` and ``{"event": "request.finished", …}`` hold a request's counts. Its times
are there where the server keeps them (``request_received_ts``, ``prefill_finished_ts``, ``decode_finished_ts`` or
``request_finished_ts``; ``e2e_latency`` alone can't be parted into prefill and decode). A ``Decode batch`` line holds
the tokens a second of the steps since the one before.
"""

import re
from collections.abc import Iterable, Iterator

import numpy as np

from analysis.server_logs.requests import Log, LoggedRequest, Window

SERVER = "SGLang"
MARKS = (b"Finish: obj=", b'"request.finished"', b"Decode batch")
NO_TIMES = (
    "times of prefill and decode (start the server with --log-requests --enable-metrics; its 'input throughput' of a "
    "prefill batch is not used: that time goes back to the batch before, idle or not)"
)
FROM_RECEIPT = "the start of a prefill: its time is from receipt, so that waiting for other requests is in it"
_COUNTS = re.compile(rb"""['"](prompt_tokens|cached_tokens|completion_tokens)['"]: (\d+)""")
_STAMPS = re.compile(
    rb"""['"](request_received_ts|prefill_finished_ts|prefill_finished_time|decode_finished_ts|request_finished_ts)"""
    rb"""['"]: ([0-9.]+)"""
)
_DECODE = re.compile(rb"Decode batch[.,].*?#running-req: (\d+).*?gen throughput \(token/s\): ([0-9.]+)")


def read(lines: Iterable[bytes]) -> Iterator[LoggedRequest | Window]:
    for line in lines:
        if decode := _DECODE.search(line):
            yield Window(int(decode[1]), float(decode[2]))
        # What the client asked for stands before; it may hold the same words.
        elif (at := line.rfind(b"meta_info")) >= 0:
            yield _request(line[at:])


def lacks(log: Log) -> tuple[str, ...]:
    return (FROM_RECEIPT,) if np.isfinite(log.column("prefill_s")).any() else (NO_TIMES,)


def _request(meta: bytes) -> LoggedRequest:
    counts = {name: int(value) for name, value in _COUNTS.findall(meta)}
    stamps = {name: float(value) for name, value in _STAMPS.findall(meta)}
    received = stamps.get(b"request_received_ts")
    first = stamps.get(b"prefill_finished_ts", stamps.get(b"prefill_finished_time"))
    last = stamps.get(b"decode_finished_ts", stamps.get(b"request_finished_ts"))
    prompt, generated = counts.get(b"prompt_tokens"), counts.get(b"completion_tokens")
    return LoggedRequest(
        new_tokens=None if prompt is None else prompt - counts.get(b"cached_tokens", 0),
        prefill_s=None if received is None or first is None else first - received,
        generated=generated,
        decode_s=None if first is None or last is None else last - first,
        steps=None if generated is None else generated - 1,
    )
