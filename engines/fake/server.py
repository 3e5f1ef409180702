"""The fake engine's server: sends each part of a stream at its absolute deadline and stamps it.

It speaks every dialect, each on its path, and computes nothing. Its stamps are of CLOCK_MONOTONIC, which the client's
``perf_counter_ns`` reads too on Linux, so ``GET /stamps?last=N`` tells a client's error. Each connection has a thread
that sleeps until a token is due: an event loop's timers would round to whole milliseconds.
"""

import json
import os
import random
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from engines.fake.asked import Asked, BadRequest, check_stream, read
from engines.fake.cache import PrefixCache
from engines.fake.catalogue import STREAMS, faults
from engines.fake.journal import Journal, Stamps, lateness
from engines.fake.streams import Part, Stream, event, stream

_KEPT_STAMPS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeSettings:
    """The latencies that a client should find, and how the engine misbehaves."""

    prefill_s: float = 0.0
    prefill_s_per_token: float = 0.0
    decode_s: float = 0.0
    context: int = 32768
    vocab_size: int = 262_144
    sequences: int = 64
    """Newest sequences whose keys and values are kept."""
    load_s: float = 0.0
    """After the start, ``/health`` answers 503 for so long."""
    faults: tuple[tuple[str, int | None], ...] = ()
    """``(name, n)``: the n-th completion, from 1, streams so; None: each does."""
    fault_rate: float = 0.0
    """The share of completions that meet a fault drawn from all of the dialect's."""
    fault_seed: int = 0
    fault_from: int = 1
    """The first completion that may meet one, so that the engine's start does not."""
    journal: Path | None = None
    """Where each completion is written down; None: nowhere."""


class FakeEngine(ThreadingHTTPServer):
    """The listening socket and what the connections' threads share; port 0 takes a free one."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, settings: FakeSettings, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.settings = settings
        self.cache = PrefixCache(settings.sequences)
        self.stamps: deque[Stamps] = deque(maxlen=_KEPT_STAMPS)
        self.journal = Journal(settings.journal)
        self.numbers = count(self.journal.first_number)
        self.ready_at_s = time.monotonic() + settings.load_s
        super().__init__((host, port), _Connection)

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def lateness(self) -> str:
        """How late tokens left, over the newest answers."""
        return lateness(list(self.stamps))

    def stream_of(self, number: int, asked: Asked) -> str:
        """The name of the stream that a completion gets.

        Raises:
            BadRequest: its dialect has no such stream.
        """
        for name, nth in self.settings.faults:
            if nth in (None, number):
                check_stream(name, asked.dialect)
                return name
        draw = random.Random(f"{self.settings.fault_seed}:{number}")
        if number >= self.settings.fault_from and draw.random() < self.settings.fault_rate:
            return draw.choice(sorted(faults(asked.dialect)))
        return asked.stream

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no error; everything else keeps its traceback."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def in_thread(settings: FakeSettings) -> Iterator[FakeEngine]:
    """Serve from a thread of this process, for tests that start no other. The fault ``die`` ends yours."""
    with FakeEngine(settings) as engine:
        thread = threading.Thread(target=engine.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield engine
        finally:
            engine.shutdown()
            thread.join()


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: FakeEngine

    def parse_request(self) -> bool:
        self._arrived_ns = time.perf_counter_ns()  # the request line was read just now
        return super().parse_request()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        path = url.path
        if path == "/health":
            loading = time.monotonic() < self.server.ready_at_s
            self._json(503 if loading else 200, {"status": "loading" if loading else "ok"})
        elif path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": "fake", "object": "model"}]})
        elif path == "/stamps":
            last = int(parse_qs(url.query).get("last", ["0"])[0])
            answers = [asdict(stamps) for stamps in list(self.server.stamps)[-last:]]
            self._json(200, {"clock": "CLOCK_MONOTONIC", "answers": answers, "lateness": self.server.lateness()})
        else:
            self._json(404, {"error": {"message": f"nothing at {path}", "type": "not_found"}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        settings = self.server.settings
        try:
            asked = read(self.path, body, context=settings.context, vocab_size=settings.vocab_size)
            number = next(self.server.numbers)
            name = self.server.stream_of(number, asked)
        except BadRequest as error:
            self._json(400, {"error": {"message": str(error), "type": "invalid_request_error"}})
            return
        cached = self.server.cache.cached_tokens(asked.prompt_ids)
        wire = asked.wire(number=number, cached_tokens=cached)
        new = len(asked.prompt_ids) - cached
        first_due_s = settings.prefill_s + new * settings.prefill_s_per_token
        plain = stream(wire, asked.output_ids, first_due_s=first_due_s, decode_s=settings.decode_s)
        stamps = Stamps(request=number, prompt_start=asked.prompt_ids[:2], arrived_ns=self._arrived_ns)
        self.server.stamps.append(stamps)
        answer = STREAMS[name](plain, wire)
        try:
            self._send(answer, stamps)
        finally:
            # The last token sent was never decoded, so it has no keys and values.
            sent = asked.output_ids[: len(stamps.sent_ns)][:-1]
            self.server.cache.keep(asked.prompt_ids + sent)
            self.server.journal.note(stamps, stream=name, prompt_ids=asked.prompt_ids)
            if answer.ending == "die":
                os._exit(1)

    def _send(self, answer: Stream, stamps: Stamps) -> None:
        if answer.body is not None:
            assert answer.status is not None
            self._head(answer, ("Content-Length", str(len(answer.body))))
            self.wfile.write(answer.body)
            return
        if answer.status is not None:
            self._head(answer, ("Transfer-Encoding", "chunked"))
        for part in answer.parts:
            self._part(part, answer, stamps)
        for entry in answer.tail:
            if isinstance(entry, float):
                time.sleep(entry)
                continue
            piece = entry if isinstance(entry, bytes) else event(_measured(entry, stamps))
            self._chunk(answer.encode(piece))
        if answer.ending == "end":
            self.wfile.write(b"0\r\n\r\n")
            return
        self.close_connection = True
        if answer.ending == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
        elif answer.ending == "stall":
            self.rfile.read(1)  # until the client leaves

    def _part(self, part: Part, answer: Stream, stamps: Stamps) -> None:
        data = answer.encode(part.data)
        due_ns = stamps.arrived_ns + int(part.due_s * 1e9)
        time.sleep(max(0, due_ns - time.perf_counter_ns()) / 1e9)
        sent_ns = time.perf_counter_ns()
        self._chunk(data)
        stamps.due_ns.extend([due_ns] * len(part.ids))
        stamps.sent_ns.extend([sent_ns] * len(part.ids))

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _head(self, answer: Stream, framing: tuple[str, str]) -> None:
        assert answer.status is not None
        self.send_response(answer.status)
        for name, value in (*answer.headers, framing):
            self.send_header(name, value)
        self.end_headers()

    def _json(self, status: int, payload: dict[str, Any]) -> None:
        body = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Requests are not logged one by one: that would cost time the latencies do not hold."""


def _measured(payload: dict[str, Any], stamps: Stamps) -> dict[str, Any]:
    """The usage event with what this answer really took, lateness included."""
    if "timings" not in payload or not stamps.sent_ns:
        return payload
    took = {
        "prompt_ms": (stamps.sent_ns[0] - stamps.arrived_ns) / 1e6,
        "predicted_ms": (stamps.sent_ns[-1] - stamps.sent_ns[0]) / 1e6,
    }
    return payload | {"timings": payload["timings"] | took}
