"""Writes each call as a line of a ``chat_log`` file (`workloads.formats.chat_log`), as the answers end."""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from io import FileIO
from pathlib import Path
from statistics import median
from typing import Any

from workloads.capture.exchange import Ending, Exchange, decoded, header
from workloads.capture.redact import carried, echoes_hidden, fields_hidden
from workloads.capture.sessions import Sessions
from workloads.session import WorkloadError

STREAM_END = b"data: [DONE]"
REFUSED = "the server refused"
FIRST_ERROR_STATUS = 400


class Recorder:
    """A thread of its own reads, hides secrets and writes, so no answer that is on its way waits for it."""

    def __init__(self, path: Path, *, clock_start_s: float) -> None:
        """Open the file, and go on with the sessions of a recording that it holds already.

        Args:
            clock_start_s: Unix time at zero of the clock of the exchanges.

        Raises:
            WorkloadError: a file that can't be written, or that holds something else.
        """
        self.path = path
        self.calls = 0
        self.texts = 0
        self.sessions: set[str] = set()
        self.waits_s: list[float] = []
        self.unfinished: Counter[str] = Counter()
        self.unreadable = 0
        self.lost = 0
        self._clock_start_s = clock_start_s
        self._grouping = Sessions()
        try:
            self.continued = self._read_again() if path.is_file() else 0
            self._file: FileIO = path.open("ab", buffering=0)
        except OSError as error:
            raise WorkloadError(f"{path}: {error.strerror}; choose another out=") from error
        self._thread = ThreadPoolExecutor(1, "recorder")

    def add(self, exchange: Exchange) -> None:
        """Record a call soon; the order of the calls of this method is that of the lines."""
        self._thread.submit(self._write, exchange).add_done_callback(_show_bug)

    def close(self) -> None:
        """Finish what was added."""
        self._thread.shutdown()
        self._file.close()

    def _write(self, exchange: Exchange) -> None:
        try:
            request = _request(exchange)
            row = None if request is None else self._row(exchange, request)
            wait_s = None
            if row is not None:
                row["session_id"], wait_s = self._group(row)
                line = json.dumps(row).encode() + b"\n"
        except RecursionError:  # nested deeper than a reader would follow
            row = None
        if row is None:
            self.unreadable += 1
        elif self._append(line):
            self._count(exchange, row, wait_s)

    def _row(self, exchange: Exchange, request: Mapping[str, Any]) -> dict[str, Any]:
        secrets = carried(exchange.target, exchange.request_headers, request)
        response = _response(exchange)
        if isinstance(response, dict):
            response = fields_hidden(response)
        row = {
            "session_id": None,
            "time_s": round(self._clock_start_s + exchange.sent_s, 6),
            "request": echoes_hidden(fields_hidden(request), secrets),
            "response": echoes_hidden(response, secrets),
            "duration_s": round(exchange.ended_s - exchange.sent_s, 6),
        }
        if exchange.first_s is not None:
            row["ttft_s"] = round(exchange.first_s - exchange.sent_s, 6)
        return row

    def _count(self, exchange: Exchange, row: Mapping[str, Any], wait_s: float | None) -> None:
        self.calls += 1
        self.sessions.add(row["session_id"])
        self.texts += not row["request"].get("messages")
        if wait_s is not None:
            self.waits_s.append(wait_s)
        if exchange.ending is not Ending.WHOLE:
            if not _has_all(exchange):
                self.unfinished[exchange.ending.value] += 1
        elif isinstance(row["response"], dict) and row["response"].get("error"):
            self.unfinished[REFUSED] += 1

    def _append(self, line: bytes) -> bool:
        """Hand a line to the system at once, whole or not at all; tell whether it took it."""
        end = self._file.tell()
        try:
            if self._file.write(line) == len(line):
                return True
            reason = "no space left"
        except OSError as error:
            reason = error.strerror or str(error)
        with suppress(OSError):  # not a plain file
            self._file.truncate(end)
        if not self.lost:
            print(f"prepare: {self.path}: {reason}; calls are passed on unrecorded", file=sys.stderr, flush=True)
        self.lost += 1
        return False

    def _group(self, row: Mapping[str, Any]) -> tuple[str, float | None]:
        sent_s = row["time_s"]
        return self._grouping.session_of(
            row["request"],
            row["response"],
            sent_s=sent_s,
            ended_s=sent_s + row["duration_s"],
            known=row["session_id"],
        )

    def _read_again(self) -> int:
        """Take the calls that the file holds; a last line that a crash cut short is removed."""
        number = end = 0
        line = b"\n"
        with self.path.open("r+b") as file:
            for number, line in enumerate(file, start=1):
                try:
                    self._group(json.loads(line))
                except (ValueError, TypeError, KeyError, AttributeError) as error:
                    if end and not line.endswith(b"\n"):
                        break
                    raise WorkloadError(
                        f"{self.path}: line {number} is no call that capture recorded; choose another out="
                    ) from error
                end += len(line)
            else:
                if not line.endswith(b"\n"):
                    file.write(b"\n")
                return number
            file.truncate(end)
        print(f"prepare: {self.path}: removed line {number}, which a crash had cut short", file=sys.stderr)
        return number - 1

    def summary(self) -> Iterator[str]:
        """Say in lines what was recorded, once it is closed."""
        waits = f"; median wait before a request {median(self.waits_s):.3f} s" if self.waits_s else ""
        yield f"recorded {_many(self.calls, 'call')} of {_many(len(self.sessions), 'session')} in {self.path}{waits}"
        for reason, count in self.unfinished.most_common():
            yield f"{count:>9,}  without a whole answer: {reason}"
        if self.texts:
            yield f"{self.texts:>9,}  text completions, which `prepare source=chat_log` drops: they have no messages"
        if self.unreadable:
            yield f"{self.unreadable:>9,}  requests without messages or prompt, passed on but not recorded"
        if self.lost:
            yield f"{self.lost:>9,}  calls that could not be written, passed on but not recorded"
        if self.calls > self.texts:
            yield f"next: prepare source=chat_log path={self.path} out=sessions.parquet"


def _request(exchange: Exchange) -> dict[str, Any] | None:
    body = decoded(exchange.request_body, exchange.request_headers)
    parsed = None if body is None else _parsed(body)
    return parsed if isinstance(parsed, dict) and ("messages" in parsed or "prompt" in parsed) else None


def _response(exchange: Exchange) -> Any:
    """Return the answer as the format holds it: a body, a stream's text, ``{"error": …}`` or null."""
    body = decoded(exchange.response_body, exchange.response_headers)
    is_stream = (header(exchange.response_headers, b"content-type") or b"").lower().startswith(b"text/event-stream")
    if exchange.status is None or (exchange.ending is not Ending.WHOLE and not is_stream):
        failed = exchange.ending in (Ending.UNREACHABLE, Ending.SERVER_BROKE_OFF)
        return {"error": {"message": f"{exchange.ending.value}: {exchange.reason}"}} if failed else None
    if body is None:
        return {"error": {"message": "the answer was compressed in a way that capture can't read"}}
    parsed = _parsed(body)
    if exchange.status >= FIRST_ERROR_STATUS and not (isinstance(parsed, dict) and parsed.get("error")):
        message = body.decode(errors="replace") if parsed is None else parsed
        return {"error": {"message": message, "code": exchange.status}}
    if parsed is not None:
        return parsed
    return body.decode(errors="replace") or None


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _has_all(exchange: Exchange) -> bool:
    """Many clients leave as soon as they have read the end mark of a stream."""
    body = decoded(exchange.response_body, exchange.response_headers)
    return body is not None and body.rstrip().endswith(STREAM_END)


def _show_bug(future: "Future[None]") -> None:
    future.result()


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
