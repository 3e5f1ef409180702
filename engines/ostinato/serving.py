"""Serves a backend over HTTP/1.1: the listening socket, and what its connections share (``connection.py``)."""

import os
import signal
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from itertools import count
from types import FrameType
from typing import TYPE_CHECKING, Any

from engines.ostinato.backend import Backend
from engines.ostinato.connection import Connection
from engines.ostinato.metrics import Metrics
from engines.ostinato.turnstile import Turnstile

if TYPE_CHECKING:
    from engines.ostinato.chat.request import Chat

STOP_TIMEOUT_S = 3.0  # less than the 5 s after which a harness kills


class CompletionServer(ThreadingHTTPServer):
    """One request computes at a time, others wait in order.

    Args:
        chat: answers ``/v1/chat/completions``; None refuses it.
        after_request: called while the engine is still held, once the answer is sent.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        backend: Backend,
        *,
        host: str,
        port: int,
        queue_limit: int = 8,
        chat: "Chat | None" = None,
        after_request: Callable[[], None] = lambda: None,
    ) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.backend, self.chat, self.after_request = backend, chat, after_request
        self.turnstile = Turnstile(queue_limit)
        self.metrics = Metrics(backend.timings())
        self.stopping = threading.Event()
        self.started = int(time.time())
        self.numbers = count(1)
        super().__init__((host, port), Connection)

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


def serve(
    backend: Backend,
    *,
    host: str,
    port: int,
    queue_limit: int = 8,
    chat: "Chat | None" = None,
    after_request: Callable[[], None] = lambda: None,
) -> None:
    """Answer until SIGTERM or SIGINT, then return; port 0 takes a free one. For the arguments see
    ``CompletionServer``.

    Raises:
        OSError: the address can't be listened on.
    """
    stop_signals = (signal.SIGTERM, signal.SIGINT)

    def stop(_number: int, _frame: FrameType | None) -> None:
        server.stopping.set()
        # shutdown() waits for serve_forever, which this very thread runs. No daemon: one that frees a tensor while
        # the interpreter ends aborts the process.
        threading.Thread(target=server.shutdown).start()

    with CompletionServer(
        backend, host=host, port=port, queue_limit=queue_limit, chat=chat, after_request=after_request
    ) as server:
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
