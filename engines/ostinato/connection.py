"""One HTTP connection: the thread that reads a request also computes and writes each token.

There is no hand-off between a token and its bytes on the socket, so the server adds 11 to 14 µs a token. A client
that leaves frees the engine within one step.
"""

import json
import select
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from engines.ostinato.answers import Answer, CompletionAnswer, error, error_events
from engines.ostinato.backend import BackendError, Interrupted, Interruptible
from engines.ostinato.chat.answers import ChatAnswer
from engines.ostinato.generate import Generation, Token
from engines.ostinato.metrics import CONTENT_TYPE
from engines.ostinato.request import BadRequest, CompletionRequest, parse_request
from engines.ostinato.turnstile import GoneError, QueueFullError

if TYPE_CHECKING:
    from engines.ostinato.serving import CompletionServer

MAX_BODY_BYTES = 64 << 20
SEND_TIMEOUT_S = 30.0  # a client that stops reading must not hold the engine
RETRY_AFTER_S = 1
_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"
_REFUSALS = {"model_not_found": HTTPStatus.NOT_FOUND, "no_chat_template": HTTPStatus.NOT_FOUND}
"""Bad requests with a status of their own."""

_Job = tuple[CompletionRequest, Generation, Answer]


class Connection(BaseHTTPRequestHandler):
    """Answers requests one after the other."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "CompletionServer"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/health":
            self._answer(HTTPStatus.OK, {"status": "ok"})
        elif path == "/metrics":
            running, waiting = self.server.turnstile.counts()
            body = self.server.metrics.text(running=running, waiting=waiting).encode()
            self._head(HTTPStatus.OK, {"Content-Type": CONTENT_TYPE, "Content-Length": str(len(body))}, body)
        elif path == "/v1/models":
            self._answer(HTTPStatus.OK, {"object": "list", "data": [self._model()]})
        elif path == f"/v1/models/{self.server.backend.name}":
            self._answer(HTTPStatus.OK, self._model())
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def do_POST(self) -> None:
        body = self._body()
        if body is None:
            return
        received_ns = perf_counter_ns()
        path = self.path.partition("?")[0]
        if path not in (_COMPLETIONS, _CHAT):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        try:
            job = self._parse(path, body)
        except BadRequest as problem:
            self.server.metrics.ends(path, "refused")
            status = _REFUSALS.get(problem.code or "", HTTPStatus.BAD_REQUEST)
            self._answer(status, error(str(problem), "invalid_request_error", problem.code))
            return
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP | select.POLLHUP | select.POLLERR)

        def gone() -> bool:
            return self.server.stopping.is_set() or bool(poll.poll(0))

        self.connection.settimeout(SEND_TIMEOUT_S)
        try:
            with self.server.turnstile.turn(gone):
                self._take_turn(path, job, gone, received_ns)
        except QueueFullError:
            self.server.metrics.ends(path, "queue_full")
            full = error("too many requests wait; try again later", "queue_full")
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, full, {"Retry-After": str(RETRY_AFTER_S)})
        except (GoneError, Interrupted, ConnectionError, TimeoutError):
            self.close_connection = True
        finally:
            self.connection.settimeout(None)  # between turns a tool may run for minutes

    def _parse(self, path: str, body: bytes) -> _Job:
        """Raises: BadRequest: the client's mistake."""
        server = self.server
        backend, number = server.backend, next(server.numbers)
        if path == _COMPLETIONS:
            request = parse_request(body, backend)
            answer: Answer = CompletionAnswer(request, number=number, model=backend.name, spell=backend.token_bytes)
            return request, Generation(backend, request), answer
        if server.chat is None:
            raise BadRequest(
                f"{backend.name} is served without a chat template; send prompts to {_COMPLETIONS}",
                code="no_chat_template",
            )
        chat = server.chat.parse(body, backend)
        answer = ChatAnswer(chat, number=number, model=backend.name)
        return chat.completion, Generation(backend, chat.completion, chat.spell), answer

    def _take_turn(self, path: str, job: _Job, gone: Callable[[], bool], received_ns: int) -> None:
        metrics, generation = self.server.metrics, job[1]
        metrics.begins(generation)
        outcome = "failed"
        try:
            outcome = self._compute(job, gone)
        except (GoneError, Interrupted, ConnectionError, TimeoutError):
            outcome = "left"
            raise
        finally:
            # Still in turn: the backend's own counts are of this request.
            metrics.ends(path, outcome, generation, received_ns)
            self.server.after_request()

    def _compute(self, job: _Job, gone: Callable[[], bool]) -> str:
        """How it ended."""
        request, generation, answer = job
        backend = self.server.backend
        if isinstance(backend, Interruptible):
            backend.interrupt = gone
        tokens: list[Token] = []
        try:
            for token in generation:
                if request.stream and (events := answer.token(token)):
                    self._stream(events, first=not tokens)
                tokens.append(token)
                if gone():
                    raise GoneError
        except BackendError as problem:
            print(f"request failed: {problem}", file=sys.stderr, flush=True)
            if request.stream and tokens:
                self._stream(error_events(str(problem), "backend_error"), last=True)
            else:
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, error(str(problem), "backend_error"))
            return "failed"
        if request.stream:
            self._stream(answer.end(generation), last=True)
        else:
            self._answer(HTTPStatus.OK, answer.whole(tokens, generation))
        print(generation.summary(), flush=True)
        return "complete"

    def _model(self) -> dict[str, Any]:
        backend = self.server.backend
        return {
            "id": backend.name,
            "object": "model",
            "created": self.server.started,
            "owned_by": "local",
            "max_model_len": backend.context,
            "vocab_size": backend.vocab_size,
        }

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
            self.send_error(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the body holds {length} bytes; at most {MAX_BODY_BYTES} are taken",
            )
        else:
            return self.rfile.read(int(length))
        return None

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Every error is JSON, those that the standard library raises itself too."""
        self.close_connection = True  # the body may still be unread
        self._answer(code, error(message or HTTPStatus(code).phrase, "http_error"))

    def _answer(self, code: int, content: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        head = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        self._head(code, head | (headers or {}), body)

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
