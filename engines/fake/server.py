"""The fake engine's server: sends each part of a stream at its absolute deadline and stamps it.

It speaks the ``ostinato`` dialect and computes nothing. Its stamps are of CLOCK_MONOTONIC, which the client's
``perf_counter_ns`` reads too on Linux, so ``GET /stamps?last=N`` tells a client's error. Each connection has a thread
that sleeps until a token is due: an event loop's timers would round to whole milliseconds.
"""

import json
import os
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlsplit

from engines.fake.cache import PrefixCache
from engines.fake.streams import STREAMS, Part, Stream, event, stream

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
    """``(name, n)``: the n-th completion since the start, from 1, streams so; None: each does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamps:
    """One answer by the engine's own clock, all ``perf_counter_ns``."""

    request: int
    prompt_start: tuple[int, ...]
    """The prompt's first two ids, to find the request by."""
    arrived_ns: int
    due_ns: list[int] = field(default_factory=list)
    """One entry a token; tokens of one chunk share it."""
    sent_ns: list[int] = field(default_factory=list)
    """Taken right before the chunk was handed to the kernel."""


class FakeEngine(ThreadingHTTPServer):
    """The listening socket and what the connections' threads share; port 0 takes a free one."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, settings: FakeSettings, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.settings = settings
        self.cache = PrefixCache(settings.sequences)
        self.stamps: deque[Stamps] = deque(maxlen=_KEPT_STAMPS)
        self.numbers = count(1)
        self.ready_at_s = time.monotonic() + settings.load_s
        super().__init__((host, port), _Connection)

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def lateness(self) -> str:
        """How late tokens left, over the newest answers."""
        late_ns = sorted(
            sent - due for stamps in self.stamps for sent, due in zip(stamps.sent_ns, stamps.due_ns, strict=True)
        )
        if not late_ns:
            return "no token was sent"
        p50, p99, worst = (late_ns[int(part * (len(late_ns) - 1))] / 1e6 for part in (0.5, 0.99, 1.0))
        return f"{len(late_ns)} tokens left late by {p50:.3f} ms at p50, {p99:.3f} ms at p99, {worst:.3f} ms at worst"

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


class _BadRequest(Exception):  # noqa: N818 - named for the answer it becomes
    pass


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
            if self.path != "/v1/completions":
                raise _BadRequest(f"nothing at {self.path}; post to /v1/completions")
            prompt_ids, output_ids, fault = _read_request(body, settings)
        except _BadRequest as error:
            self._json(400, {"error": {"message": str(error), "type": "invalid_request_error"}})
            return
        number = next(self.server.numbers)
        for name, nth in settings.faults:
            if nth in (None, number):
                fault = name
        cached = self.server.cache.cached_tokens(prompt_ids)
        new = len(prompt_ids) - cached
        plain = stream(
            output_ids,
            name=f"cmpl-{number}",
            first_due_s=settings.prefill_s + new * settings.prefill_s_per_token,
            decode_s=settings.decode_s,
            prompt_tokens=len(prompt_ids),
            cached_tokens=cached,
        )
        stamps = Stamps(request=number, prompt_start=prompt_ids[:2], arrived_ns=self._arrived_ns)
        self.server.stamps.append(stamps)
        try:
            self._send(STREAMS[fault](plain), stamps)
        finally:
            # The last token sent was never decoded, so it has no keys and values.
            sent = output_ids[: len(stamps.sent_ns)][:-1]
            self.server.cache.keep(prompt_ids + sent)

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
        for k, entry in enumerate(answer.tail):
            if k == 1:
                time.sleep(answer.tail_pause_s)
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
        elif answer.ending == "die":
            os._exit(1)

    def _part(self, part: Part, answer: Stream, stamps: Stamps) -> None:
        data = answer.encode(part.data)
        due_ns = stamps.arrived_ns + int(part.due_s * 1e9)
        time.sleep(max(0, due_ns - time.perf_counter_ns()) / 1e9)
        sent_ns = time.perf_counter_ns()
        self._chunk(data)
        stamps.due_ns.extend([due_ns] * part.tokens)
        stamps.sent_ns.extend([sent_ns] * part.tokens)

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


def _read_request(body: bytes, settings: FakeSettings) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    """``(prompt_ids, output_ids, stream's name)``; a text prompt counts a token a byte."""
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise _BadRequest(f"the body is not valid JSON: {error}") from error
    if not isinstance(fields, dict) or fields.get("stream") is not True:
        raise _BadRequest("send a JSON object with stream=true; this engine only streams")
    prompt = fields.get("prompt")
    prompt_ids = tuple(prompt.encode()) if isinstance(prompt, str) else _ids("prompt", prompt, settings)
    length = fields.get("max_tokens", 16)
    if type(length) is not int or length < 1:
        raise _BadRequest("max_tokens must be an integer of at least 1")
    if len(prompt_ids) + length > settings.context:
        raise _BadRequest(
            f"{len(prompt_ids)} prompt tokens + max_tokens {length} exceed the context of {settings.context} tokens"
        )
    if "forced_tokens" in fields:
        output_ids = _ids("forced_tokens", fields["forced_tokens"], settings)
        if len(output_ids) != length:
            raise _BadRequest(f"forced_tokens holds {len(output_ids)} ids but max_tokens is {length}")
    else:
        output_ids = tuple((len(prompt_ids) + k) * 40_503 % settings.vocab_size for k in range(length))
    name = fields.get("fault", "plain")
    if name not in STREAMS:
        raise _BadRequest(f"no stream {name!r}; choose one of {', '.join(STREAMS)}")
    return prompt_ids, output_ids, name


def _ids(name: str, ids: Any, settings: FakeSettings) -> tuple[int, ...]:
    if not isinstance(ids, list) or not ids or set(map(type, ids)) != {int}:
        raise _BadRequest(f"{name} must be a list of token ids that is not empty")
    if min(ids) < 0 or max(ids) >= settings.vocab_size:
        raise _BadRequest(f"{name} holds an id outside the vocabulary 0..{settings.vocab_size - 1}")
    return tuple(ids)
