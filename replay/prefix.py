"""Prefixes that keep sessions from sharing one another's cache."""

import hashlib
import random
from dataclasses import replace

from workloads.load import Workload
from workloads.session import Session, WorkloadError
from workloads.store import content_hash


def with_distinct_prefixes(workload: Workload, tokens: int, seed: int) -> Workload:
    """Put ``tokens`` ids before every session, drawn from the workload's own; no two sessions begin alike.

    The same seed and workload give the same prefixes, whichever engine replays it. The hash is the new content's.

    Raises:
        WorkloadError: the workload has fewer different ids than sessions.
    """
    if not tokens:
        return workload
    pool = sorted({id_ for session in workload.sessions for turn in session.turns for id_ in turn.delta_ids})
    random.Random(seed).shuffle(pool)
    if len(pool) < len(workload.sessions):
        raise WorkloadError(
            f"workload {workload.name} has {len(pool)} different ids for {len(workload.sessions)} sessions; "
            "set arrival.distinct_prefix_tokens=0"
        )
    sessions = tuple(
        _prefixed(session, (first, *_draw(pool, tokens - 1, f"{seed} {session.session_id}")))
        for first, session in zip(pool, workload.sessions, strict=False)
    )
    return replace(workload, sessions=sessions, content_hash=content_hash(sessions))


def _draw(pool: list[int], tokens: int, seed: str) -> list[int]:
    return random.Random(hashlib.sha256(seed.encode()).digest()).choices(pool, k=tokens)


def _prefixed(session: Session, prefix: tuple[int, ...]) -> Session:
    first, *others = session.turns
    return replace(session, turns=(replace(first, delta_ids=prefix + first.delta_ids), *others))
