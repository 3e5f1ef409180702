"""A session file split into development, screening and held-out sessions, by seed.

What is tuned on must not be measured on, so repeated trials of one task stay on one side, and a session that is in
the file twice, under whatever name, counts once.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from workloads.content_hash import ContentHash
from workloads.session import Session, WorkloadError

DEVELOPMENT, SCREENING, HELD_OUT = "development", "screening", "held_out"
SPLITS = (DEVELOPMENT, SCREENING, HELD_OUT)
BY = ("task", "session")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many sessions each part gets."""

    development: int
    held_out: int
    screening: int = 0
    """Of the development sessions: their beginnings, for quick tries."""
    screening_turns: int = 30
    """Turns that a screening session keeps."""


PRESETS = {
    "swe": Sizes(development=6, screening=2, held_out=13),
    "tau2": Sizes(development=24, held_out=60),
}
"""The sizes of the Ostinato paper (arXiv 2611.11533), table 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What deciding needs to know of a session."""

    session_id: str
    task_id: str | None
    content: str
    """`content_of` the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Session ids, by part."""

    parts: Mapping[str, tuple[str, ...]]
    duplicates: int
    """Sessions left out because another one has the same content."""
    unused: int
    """Sessions that no part needed."""
    screening_turns: int

    def sessions(self, part: str, found: Iterable[Session]) -> Iterable[Session]:
        """Yield the part's sessions, in the order in which they are found."""
        wanted = frozenset(self.parts[part])
        for session in found:
            if session.session_id in wanted:
                turns = session.turns[: self.screening_turns] if part == SCREENING else session.turns
                yield replace(session, turns=turns)


def members(found: Iterable[Session]) -> list[Member]:
    """Return what `split` needs of the sessions, a few bytes each."""
    return [
        Member(session_id=session.session_id, task_id=session.task_id, content=content_of(session))
        for session in found
    ]


def content_of(session: Session) -> str:
    """Return a hash of the tokens alone: names and recorded times do not make a session another one."""
    turns = tuple(replace(turn, tool_wait_s=None) for turn in session.turns)
    content = ContentHash()
    content.add(replace(session, session_id="", task_id=None, source="", turns=turns))
    return content.hexdigest()


def split(all_members: Iterable[Member], sizes: Sizes, *, by: str = "task", seed: int = 0) -> Split:
    """Decide which session goes where.

    Tasks (or sessions) are put in the order of a hash of seed and name, so neither the file's order nor what else it
    holds moves one from part to part. Parts are filled in that order, held-out first. Of the task that would overfill
    a part as many trials go in as fit, and the others nowhere.

    Args:
        by: ``task``: trials of one task never straddle; ``session``: each is on its own.

    Raises:
        WorkloadError: too few sessions for these sizes, or sizes that make no sense.
    """
    if by not in BY:
        raise WorkloadError(f"by={by}: known are {' and '.join(BY)}")
    if min(sizes.development, sizes.held_out, sizes.screening) < 0 or sizes.screening_turns < 1:
        raise WorkloadError("the sizes of a split are counts; give whole numbers from 0 up")
    if sizes.development + sizes.held_out == 0:
        raise WorkloadError("a split of no session; give development=N, held_out=N or preset=swe")
    if sizes.screening > sizes.development:
        raise WorkloadError(
            f"screening={sizes.screening}: screening sessions are development sessions, of which there are"
            f" {sizes.development}; use fewer"
        )
    unique, duplicates = _unique(all_members)
    groups: defaultdict[str, list[Member]] = defaultdict(list)
    for member in unique:
        groups[(member.task_id if by == "task" else None) or member.session_id].append(member)
    waiting = sorted(groups, key=lambda name: _draw(seed, name))
    parts: dict[str, tuple[str, ...]] = {}
    for part, size in ((HELD_OUT, sizes.held_out), (DEVELOPMENT, sizes.development)):
        chosen: list[str] = []
        while waiting and len(chosen) < size:
            trials = sorted(groups[waiting.pop(0)], key=lambda member: _draw(seed, member.session_id))
            chosen += [member.session_id for member in trials[: size - len(chosen)]]
        if len(chosen) < size:
            raise WorkloadError(
                f"{part}={size}: {len(unique)} different sessions of {len(groups)} tasks are too few for"
                f" held_out={sizes.held_out} and development={sizes.development}; prepare more or ask for fewer"
            )
        parts[part] = tuple(chosen)
    parts[SCREENING] = parts[DEVELOPMENT][: sizes.screening]
    used = len(parts[HELD_OUT]) + len(parts[DEVELOPMENT])
    return Split(
        parts={part: parts[part] for part in SPLITS if parts[part]},
        duplicates=duplicates,
        unused=len(unique) - used,
        screening_turns=sizes.screening_turns,
    )


def require_split(path: Path, named: str | None, wanted: str | None) -> None:
    """Check that a session file is of the split that a run asks for.

    Raises:
        WorkloadError: it is of another, or does not say of which.
    """
    if wanted is None or named == wanted:
        return
    if wanted not in SPLITS:
        raise WorkloadError(f"workload.split={wanted}: there is no such split; known are {', '.join(SPLITS)}")
    if named is None:
        raise WorkloadError(
            f"{path}: names no split, so its sessions may have been tuned on; write one with `prepare split`"
        )
    raise WorkloadError(
        f"{path}: holds {named} sessions, and workload.split={wanted} asks for others; name the {wanted} file"
    )


def _unique(all_members: Iterable[Member]) -> tuple[list[Member], int]:
    """The first by name of each content, and how many others there were."""
    ordered = sorted(all_members, key=lambda member: member.session_id)
    first = {member.content: member for member in reversed(ordered)}
    return sorted(first.values(), key=lambda member: member.session_id), len(ordered) - len(first)


def _draw(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}/{name}".encode()).digest()
