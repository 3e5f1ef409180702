"""Serves a backend over HTTP/1.1: the thread that reads a request also computes and writes each token.

There is no hand-off between a token and its bytes on the socket, so the server adds 11 to 14 µs a token. One request
computes at a time, others wait in order; a client that leaves frees the engine within one step.
"""

import json
import os
import select
import signal
import socket
import socketserver
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from types import FrameType
from typing import Any

from engines.ostinato.answers import Answer, error, error_events
from engines.ostinato.backend import Backend, BackendError, Interrupted, Interruptible
from engines.ostinato.generate import Generation, Token
from engines.ostinato.request import BadRequest, CompletionRequest, parse_request

MAX_BODY_BYTES = 64 << 20
SEND_TIMEOUT_S = 30.0  # a client that stops reading must not hold the engine
STOP_TIMEOUT_S = 3.0  # less than the 5 s after which a harness kills


class _QueueFullError(Exception):
    """More requests wait than the server was told to hold."""


class _GoneError(Exception):
    """The client left, or the server is stopping."""


class _Turnstile:
    """Lets one request in at a time, in order of arrival."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line: deque[object] = deque()
        self._moved = threading.Condition()

    @contextmanager
    def turn(self, gone: Callable[[], bool]) -> Iterator[None]:
        """Wait for the engine and hold it.

        Raises:
            _QueueFullError: as many requests as allowed wait already.
            _GoneError: the client left while it waited.
        """
        ticket = object()
        with self._moved:
            if len(self._line) > self._limit:
                raise _QueueFullError
            self._line.append(ticket)
        try:
            with self._moved:
                while self._line[0] is not ticket:
                    if not self._moved.wait(timeout=0.2) and gone():
                        raise _GoneError
            yield
        finally:
            with self._moved:
                self._line.remove(ticket)
                self._moved.notify_all()

    def idle(self, timeout_s: float) -> bool:
        """Wait until nobody computes."""
        with self._moved:
            return self._moved.wait_for(lambda: not self._line, timeout_s)


class CompletionServer(ThreadingHTTPServer):
    """The listening socket and what its handlers share."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, backend: Backend, *, host: str, port: int, queue_limit: int = 8) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.backend = backend
        self.turnstile = _Turnstile(queue_limit)
        self.stopping = threading.Event()
        self.started = int(time.time())
        self.numbers = count(1)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without HTTPServer's reverse name look-up, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[0], self.server_address[1]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no error; everything else keeps its traceback."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Where it answers."""
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{host}:{self.server_port}"


def serve(backend: Backend, *, host: str, port: int, queue_limit: int = 8) -> None:
    """Answer until SIGTERM or SIGINT, then return; port 0 takes a free one.

    Raises:
        OSError: the address can't be listened on.
    """
    stop_signals = (signal.SIGTERM, signal.SIGINT)

    def stop(_number: int, _frame: FrameType | None) -> None:
        server.stopping.set()
        # shutdown() waits for serve_forever, which this very thread runs.
        threading.Thread(target=server.shutdown, daemon=True).start()

    with CompletionServer(backend, host=host, port=port, queue_limit=queue_limit) as server:
        before = {number: signal.signal(number, stop) for number in stop_signals}
        try:
            print(f"serving {backend.name} (context {backend.context}) at {server.url}", flush=True)
            server.serve_forever(poll_interval=0.1)
        finally:
            server.stopping.set()
            # Leaving while a thread computes would end in a crash of native code.
            if not server.turnstile.idle(STOP_TIMEOUT_S):
                print("stopped in the middle of a computation", flush=True)
                os._exit(0)
            for number, handler in before.items():
                signal.signal(number, handler)


class _Handler(BaseHTTPRequestHandler):
    """One connection, on its own thread."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: CompletionServer

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(HTTPStatus.OK, {"status": "ok"})
        elif self.path == "/v1/models":
            backend = self.server.backend
            model = {
                "id": backend.name,
                "object": "model",
                "created": self.server.started,
                "owned_by": "local",
                "max_model_len": backend.context,
                "vocab_size": backend.vocab_size,
            }
            self._answer(HTTPStatus.OK, {"object": "list", "data": [model]})
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        body = self._body()
        if body is None:
            return
        if self.path != "/v1/completions":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            request = parse_request(body, self.server.backend)
        except BadRequest as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error), "invalid_request_error")
            return
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP | select.POLLHUP | select.POLLERR)

        def gone() -> bool:
            return self.server.stopping.is_set() or bool(poll.poll(0))

        self.connection.settimeout(SEND_TIMEOUT_S)
        try:
            with self.server.turnstile.turn(gone):
                self._complete(request, gone)
        except _QueueFullError:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests wait; try again later", "queue_full")
        except (_GoneError, Interrupted, ConnectionError, TimeoutError):
            self.close_connection = True
        finally:
            self.connection.settimeout(None)  # between turns a tool may run for minutes

    def _complete(self, request: CompletionRequest, gone: Callable[[], bool]) -> None:
        backend = self.server.backend
        if isinstance(backend, Interruptible):
            backend.interrupt = gone
        generation = Generation(backend, request)
        answer = Answer(request, number=next(self.server.numbers), model=backend.name)
        tokens: list[Token] = []
        try:
            for token in generation:
                if request.stream:
                    self._stream(answer.token(token), first=not tokens)
                tokens.append(token)
                if gone():
                    raise _GoneError
        except BackendError as problem:
            print(f"request failed: {problem}", file=sys.stderr, flush=True)
            if request.stream and tokens:
                self._stream(error_events(str(problem), "backend_error"), last=True)
            else:
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, error(str(problem), "backend_error"))
            return
        if request.stream:
            self._stream(answer.end(generation), last=True)
        else:
            self._answer(HTTPStatus.OK, answer.whole(tokens, generation))
        print(generation.summary(), flush=True)

    def _stream(self, events: bytes, *, first: bool = False, last: bool = False) -> None:
        """Write events as one chunk; the headers travel with the first."""
        if self.request_version != "HTTP/1.0":  # which knows no chunks and ends with the connection
            events = b"%x\r\n%b\r\n" % (len(events), events) + (b"0\r\n\r\n" if last else b"")
        if first:
            self._head(HTTPStatus.OK, {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}, events)
        else:
            self.wfile.write(events)

    def _body(self) -> bytes | None:
        """The request's body, or None once it was refused."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.send_error(HTTPStatus.LENGTH_REQUIRED)
        elif int(length) > MAX_BODY_BYTES:
            self.send_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            return self.rfile.read(int(length))
        return None

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Every error is JSON, those that the standard library raises itself too."""
        self.close_connection = True  # the body may still be unread
        self._refuse(code, message or HTTPStatus(code).phrase, "http_error")

    def _refuse(self, code: int, message: str, kind: str) -> None:
        self._answer(code, error(message, kind))

    def _answer(self, code: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self._head(code, {"Content-Type": "application/json", "Content-Length": str(len(body))}, body)

    def _head(self, code: int, headers: dict[str, str], body: bytes) -> None:
        """Send the headers and the first bytes of the body in one write."""
        if "Content-Length" not in headers and self.request_version != "HTTP/1.0":
            headers = headers | {"Transfer-Encoding": "chunked"}
        if self.close_connection:
            headers = headers | {"Connection": "close"}
        lines = [f"HTTP/1.1 {code} {HTTPStatus(code).phrase}", f"Date: {self.date_time_string()}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.wfile.write("\r\n".join([*lines, "", ""]).encode() + body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Silent: a completion prints one line of its own, health checks none."""
