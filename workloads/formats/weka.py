"""Weka kv-cache traces: an agent session an object, ``{id, block_size, hash_id_scope, requests: […]}``; no text."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workloads.formats.chat import list_of
from workloads.formats.containers import rows
from workloads.formats.lengths import count, hashes
from workloads.formats.openai_message import optional_seconds
from workloads.formats.recognise import looks_like
from workloads.session import Session, TurnKind, WorkloadError
from workloads.trace_ids import TracedCall, TraceIds

SOURCE = "weka"
SUBAGENT = "subagent"
REQUEST_TYPES = ("n", "s")
SCOPES = ("local", "global")

DUPLICATE = "traces with the requests of an earlier trace under another id"
NO_OUTPUT = "requests without input or output"
NO_WAIT = "turns whose wait is unknown, because the answer before has no api_time or ended later"
TOO_SHORT = "prompts too short to hold the answer before them, so none of it is kept"
NO_REQUESTS = "traces and subagents without a request that can be replayed"


def matches(head: Any) -> bool:
    """Say whether a file that begins with this row, or this list of rows, is of this format."""
    row = head[0] if isinstance(head, list) and head else head
    return isinstance(row, dict) and "block_size" in row and isinstance(row.get("requests"), list)


def load(
    path: Path,
    *,
    vocab: range,
    seed: int = 0,
    block_size: int | None = None,
    losses: Counter[str] | None = None,
) -> Iterator[Session]:
    """Yield one session a trace and one a subagent, with ids drawn from ``vocab``.

    A subagent shares its trace's hashes and its ``task_id``, so splits keep them together. Prompts mostly give up the
    end of the prompt before them (``Turn.kept_ids``).

    Args:
        block_size: tokens that a hash stands for, where a trace does not say.
        losses: what is left out, by reason, is added here.

    Raises:
        WorkloadError: a file that can't be read, is not of this format, or holds something unknown.
    """
    losses = Counter() if losses is None else losses
    seen: set[bytes] = set()
    for place, row in rows(path):
        if not matches(row):
            raise WorkloadError(f"{place}: not a Weka trace but {looks_like(row)}; choose the format that fits")
        digest = hashlib.sha256(json.dumps(row["requests"], sort_keys=True).encode()).digest()
        if digest in seen:
            losses[DUPLICATE] += 1
            continue
        seen.add(digest)
        ids = TraceIds(
            vocab, seed=seed, block_size=_block_size(row, place, block_size), scope=_scope(row, place, digest)
        )
        task = str(row.get("id") or place)
        for name, requests in _streams(task, row["requests"], place):
            calls = _calls(requests, place, losses)
            if calls:
                yield Session(session_id=name, source=SOURCE, task_id=task, turns=tuple(ids.turns(calls)))
            else:
                losses[NO_REQUESTS] += 1


def _block_size(row: Mapping[str, Any], place: str, default: int | None) -> int:
    size = count(default if row["block_size"] is None else row["block_size"], f"{place}, block_size")
    if not size:
        raise WorkloadError(f"{place}, block_size: must be 1 or more")
    return size


def _scope(row: Mapping[str, Any], place: str, digest: bytes) -> int:
    scope = row.get("hash_id_scope") or "local"
    if scope not in SCOPES:
        raise WorkloadError(f"{place}, hash_id_scope: {scope!r:.40} is unknown; known are {', '.join(SCOPES)}")
    return 0 if scope == "global" else int.from_bytes(digest[:8], "little")


def _streams(name: str, requests: Any, place: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The requests of the agent itself, then those of each subagent, however deep."""
    own, subagents = [], []
    for number, request in enumerate(list_of(requests, place, "requests"), start=1):
        kind = request.get("type") if isinstance(request, dict) else None
        if kind == SUBAGENT:
            subagents.append(request)
        elif kind in REQUEST_TYPES:
            own.append(request)
        else:
            raise WorkloadError(
                f"{place}, request {number} of {name}: type {kind!r:.40} is unknown; known are"
                f" {', '.join((*REQUEST_TYPES, SUBAGENT))}"
            )
    yield name, own
    for number, subagent in enumerate(subagents, start=1):
        inner = f"{name}/{subagent.get('agent_id') or number}"
        yield from _streams(inner, subagent.get("requests"), place)


def _calls(requests: list[dict[str, Any]], place: str, losses: Counter[str]) -> list[TracedCall]:
    calls: list[TracedCall] = []
    answered_s: float | None = None
    for number, request in enumerate(requests, start=1):
        at = f"{place}, request {number}"
        input_length, output_length = count(request.get("in"), f"{at}, in"), count(request.get("out"), f"{at}, out")
        sent_s = optional_seconds(request.get("t"), f"{at}, t")
        duration_s = optional_seconds(request.get("api_time"), f"{at}, api_time")
        blocks = hashes(request.get("hash_ids"), f"{at}, hash_ids")
        if input_length and output_length:
            wait_s = None if sent_s is None or answered_s is None or sent_s < answered_s else sent_s - answered_s
            if calls and wait_s is None:
                losses[NO_WAIT] += 1
            if calls and input_length < calls[-1].input_length + calls[-1].output_length:
                losses[TOO_SHORT] += 1
            calls.append(
                TracedCall(
                    kind=_kind(request) if calls else "first",
                    blocks=blocks,
                    input_length=input_length,
                    output_length=output_length,
                    tool_wait_s=wait_s if calls else None,
                )
            )
        else:
            losses[NO_OUTPUT] += 1
        answered_s = None if sent_s is None or duration_s is None else sent_s + duration_s
    return calls


def _kind(request: Mapping[str, Any]) -> TurnKind:
    types = request.get("input_types")
    return "tool" if isinstance(types, list) and "tool_result" in types else "user"
