"""The vocabulary between the harness and an engine: what is asked, what comes back, how it fails."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

FailureKind = Literal[
    "start",  # the server did not come up
    "unreachable",  # nothing answers, or the connection was reset before an answer
    "http",  # an HTTP status other than 200
    "error_event",  # an error inside a 200 stream
    "protocol",  # bytes that are no legal stream of this dialect
    "cut",  # the stream ended before the answer did
    "stalled",  # no bytes for too long
    "timeout",  # the whole request took too long
    "zero_tokens",
    "wrong_tokens",  # other tokens than the forced ones
    "context",  # the prompt does not fit
    "setting",  # something the user can correct
]


class EngineError(Exception):
    """An engine failed or can't be used. The message says what the server said and what to do."""

    def __init__(self, message: str, *, kind: FailureKind = "setting") -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedRequest:
    """Decode exactly ``output_ids`` after ``prompt_ids``, so that every engine sees the same next prompt."""

    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One server-sent event and the moment its last byte left the socket."""

    data: str
    t_ns: int
    name: str = "message"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Output tokens that arrived together."""

    t_ns: int
    n_tokens: int
    """At least 1. Some servers say how many tokens a chunk holds but not which."""
    ids: tuple[int, ...] = ()
    """The ids, as far as the server reports them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """What the server says of a request; None where it says nothing."""

    cached_tokens: int | None = None
    prefilled_tokens: int | None = None
    generated_tokens: int | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A parsed stream."""

    chunks: tuple[Chunk, ...]
    report: ServerReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One verified exchange. All times are ``time.perf_counter_ns`` readings of this process."""

    sent_ns: int
    """The request's first byte was handed to the kernel, on a connection that was already open."""
    first_byte_ns: int
    """The first byte of the answer left the socket."""
    end_ns: int
    """The stream's end was read."""
    chunks: tuple[Chunk, ...]
    report: ServerReport
    verified_by: str
    """How the ids were checked: ``ids`` (each came back in the stream), ``shim`` (inside the server), or ``prompts``
    (each was sent as part of the next token's prompt; the engine chose its own)."""
    server_token_ns: tuple[int, ...] | None = None
    """The server's own stamp of each token on the same host's CLOCK_MONOTONIC, where forcing gives one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or folder that a server in a container must see, at the same path inside as outside."""

    path: Path
    writable: bool = False


class Dialect(Protocol):
    """One wire dialect. Pure: no I/O, no state."""

    name: str
    path: str

    def body(self, request: ForcedRequest) -> dict[str, Any]:
        """The JSON body that asks for a streamed, greedy answer of exactly ``len(output_ids)`` tokens."""

    def parse(self, events: Sequence[Event]) -> Answer:
        """Tokens and report of a finished stream.

        Raises:
            EngineError: an error event, an illegal stream, or one that was cut.
        """


class Forcing(Protocol):
    """One way to make a server emit recorded tokens."""

    name: str

    def environment(self) -> dict[str, str]:
        """Variables that the server process must be started with."""

    def mounts(self) -> tuple[Mount, ...]:
        """What those variables name, for a server in a container."""

    def requests(self, request: ForcedRequest) -> Iterable[ForcedRequest]:
        """What is asked for a turn, one after the other; most ways ask once."""

    def join(self, request: ForcedRequest, answers: Sequence[tuple[Answer, int]]) -> Answer:
        """The turn's answer.

        Args:
            answers: to ``requests``, each with its ``end_ns``.
        """

    def fields(self, request: ForcedRequest) -> dict[str, Any]:
        """Fields added to a request's body; objects are merged with the body's own of that name."""

    def arm(self, request: ForcedRequest) -> None:
        """Get ready for the next request, before it is sent."""

    def verify(self, request: ForcedRequest, answer: Answer) -> tuple[str, tuple[int, ...] | None]:
        """Check every token; return ``(verified_by, server_token_ns)``.

        Raises:
            EngineError: ``wrong_tokens`` with the first differing position, expected and got;
                ``zero_tokens`` when nothing came.
        """

    def close(self) -> None:
        """Give back what ``__init__`` took (files, memory)."""
