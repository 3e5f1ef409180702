"""Mooncake traces: a request a line, ``{timestamp, input_length, output_length, hash_ids}``; no text, no sessions.

A hash stands for a block and all before it, over the whole trace. A request continues an earlier one when it begins
with all of its full blocks, comes later, and is long enough to hold its output; the last full block must be that
session's own, so a shared system prompt joins nothing. Which requests are tool calls is not known: turns after the
first count as ``user``. Nor is when an answer ended, so no waits come out.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.formats.containers import files, rows
from workloads.formats.lengths import count, hashes
from workloads.formats.recognise import looks_like
from workloads.session import Session, WorkloadError
from workloads.trace_ids import TracedCall, TraceIds

SOURCE = "mooncake"
BLOCK_SIZE = 512
COLUMNS = ("timestamp", "input_length", "output_length", "hash_ids")

NO_OUTPUT = "requests without input or output"
SINGLE = "requests that no other continues, replayed as sessions of one turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    number: int
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


def matches(head: Any) -> bool:
    """Say whether a file that begins with this row, or this list of rows, is of this format."""
    row = head[0] if isinstance(head, list) and head else head
    return isinstance(row, dict) and row.keys() >= set(COLUMNS)


def load(
    path: Path,
    *,
    vocab: range,
    seed: int = 0,
    block_size: int = BLOCK_SIZE,
    losses: Counter[str] | None = None,
) -> Iterator[Session]:
    """Yield the sessions in the order of their first requests, with ids drawn from ``vocab``.

    Traces of one folder have nothing in common.

    Args:
        block_size: tokens that a hash stands for.
        losses: what is left out, by reason, is added here.

    Raises:
        WorkloadError: a file that can't be read, is not of this format, or whose lengths do not fit its blocks.
    """
    losses = Counter() if losses is None else losses
    for scope, file in enumerate(files(path)):
        ids = TraceIds(vocab, seed=seed, block_size=block_size, scope=scope)
        for chain in _chains(_requests(file, block_size, losses), block_size):
            if len(chain) == 1:
                losses[SINGLE] += 1
            name = f"{file.stem}/{chain[0].number}"
            calls = (
                TracedCall(
                    kind="user" if number else "first",
                    blocks=request.hash_ids,
                    input_length=request.input_length,
                    output_length=request.output_length,
                )
                for number, request in enumerate(chain)
            )
            yield Session(session_id=name, source=SOURCE, task_id=name, turns=tuple(ids.turns(calls)))


def _requests(file: Path, block_size: int, losses: Counter[str]) -> list[_Request]:
    """Those with something to replay, in order of time."""
    requests = []
    for number, (place, row) in enumerate(rows(file, columns=COLUMNS), start=1):
        request = _request(place, row, number, block_size)
        if request.input_length and request.output_length:
            requests.append(request)
        else:
            losses[NO_OUTPUT] += 1
    return sorted(requests, key=lambda request: request.timestamp)


def _request(place: str, row: Mapping[str, Any], number: int, block_size: int) -> _Request:
    if not matches(row):
        raise WorkloadError(f"{place}: not a Mooncake request but {looks_like(row)}; choose the format that fits")
    timestamp, hash_ids = row["timestamp"], row["hash_ids"]
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float):
        raise WorkloadError(f"{place}: timestamp must be a number, found {looks_like(timestamp)}")
    lengths = [count(row[key], f"{place}, {key}") for key in ("input_length", "output_length")]
    blocks = hashes(hash_ids, f"{place}, hash_ids")
    if abs(len(blocks) * block_size - lengths[0]) >= block_size:
        raise WorkloadError(
            f"{place}: {len(blocks)} hashes of {block_size} tokens do not fit an input of {lengths[0]:,} tokens;"
            " set block_size to what this trace was made with"
        )
    return _Request(
        number=number, timestamp=timestamp, input_length=lengths[0], output_length=lengths[1], hash_ids=blocks
    )


def _chains(requests: list[_Request], block_size: int) -> list[list[_Request]]:
    """Sessions: each request after those it continues."""
    chains: list[list[_Request]] = []
    seen: set[int] = set()
    ends: dict[int, list[_Request]] = {}
    """The session whose last request ends with this full block."""
    for request in requests:
        own = {block for block in request.hash_ids if block not in seen}
        seen |= own
        hit = next((block for block in reversed(request.hash_ids) if block in ends), None)
        chain = ends[hit] if hit is not None else None
        if chain is None or not _continues(request, chain[-1], block_size):
            chain = []
            chains.append(chain)
        elif hit is not None:
            own.add(hit)
            del ends[hit]
        chain.append(request)
        full = request.hash_ids[: request.input_length // block_size]
        if full and full[-1] in own:
            ends[full[-1]] = chain
    return chains


def _continues(request: _Request, last: _Request, block_size: int) -> bool:
    full = last.input_length // block_size
    return (
        request.timestamp > last.timestamp
        and request.input_length >= last.input_length + last.output_length
        and request.hash_ids[:full] == last.hash_ids[:full]
    )
