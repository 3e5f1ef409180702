"""From the workload a user asks for to sessions of token ids."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from workloads.conversation import Conversation
from workloads.session import Session, WorkloadError
from workloads.settings import WorkloadSettings

if TYPE_CHECKING:
    from workloads.render import Renderer

FORMATS = ("sample", "sessions", "synthetic", "tau2", "openhands", "conversation")

NO_MODEL_TURN = "sessions dropped: the model never answers in them"
OTHER_TOKENIZER = "sessions rendered with another tokenizer or chat template: prepare them with this one"
CUT = "turns cut off by workload.max_turns"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Everything a replay needs of a workload."""

    name: str
    sessions: tuple[Session, ...]
    content_hash: str
    losses: Mapping[str, int]
    """What was left out or could not be restored, by reason."""
    vocab_size: int
    """Of the tokenizer; every id is below it."""


def load(
    settings: WorkloadSettings, tokenizer: Path, *, progress: Callable[[Session], None] | None = None
) -> Workload:
    """Read, render and check a workload.

    Args:
        tokenizer: a folder with ``tokenizer.json``, ``tokenizer_config.json`` and ``chat_template.jinja``.
        progress: called with each session as it is ready.

    Raises:
        WorkloadError: an unusable setting or file, or a token id outside the tokenizer's vocabulary.
    """
    from workloads import store
    from workloads.render import Renderer

    renderer = Renderer(tokenizer)
    losses: Counter[str] = Counter()
    found = []
    for session in sessions(settings, renderer, tokenizer, losses):
        found.append(session)
        if progress is not None:
            progress(session)
    return Workload(
        name=settings.name,
        sessions=tuple(found),
        content_hash=store.content_hash(found),
        losses=dict(+losses),
        vocab_size=renderer.vocab_size,
    )


def sessions(
    settings: WorkloadSettings, renderer: "Renderer", tokenizer: Path, losses: Counter[str]
) -> Iterator[Session]:
    """Yield the sessions one by one, each with an id of its own; ``losses`` fills up on the way.

    Raises:
        WorkloadError: as `load`, and when not a single session comes out.
    """
    for field in ("max_sessions", "max_turns"):
        value = getattr(settings, field)
        if value is not None and value < 1:
            raise WorkloadError(f"workload.{field}={value}: set it to 1 or more, or to null for all")
    seen: Counter[str] = Counter()
    for session in islice(_all_sessions(settings, renderer, tokenizer, losses), settings.max_sessions):
        seen[session.session_id] += 1
        if (repeat := seen[session.session_id]) > 1:
            session = replace(session, session_id=f"{session.session_id}~{repeat}")
        if settings.max_turns is not None and len(session.turns) > settings.max_turns:
            losses[CUT] += len(session.turns) - settings.max_turns
            session = replace(session, turns=session.turns[: settings.max_turns])
        _check_ids(session, renderer.vocab_size, settings, tokenizer)
        yield session
    if not seen:
        where = settings.path or settings.format
        raise WorkloadError(
            f"{where}: no session with a model turn in it, so there is nothing to replay; use another file"
        )


def _all_sessions(
    settings: WorkloadSettings, renderer: "Renderer", tokenizer: Path, losses: Counter[str]
) -> Iterator[Session]:
    if settings.format == "sessions":
        from workloads import store

        path = _path(settings)
        foreign = store.header(path).tokenizer_hash != renderer.tokenizer_hash
        for session in store.read(path):
            losses[OTHER_TOKENIZER] += foreign
            yield session
    elif settings.format == "synthetic":
        yield from _synthetic(settings, renderer, tokenizer)
    else:
        yield from _rendered(settings, renderer, losses)
        if settings.format == "sample":
            yield from _synthetic(settings, renderer, tokenizer)


def _rendered(settings: WorkloadSettings, renderer: "Renderer", losses: Counter[str]) -> Iterator[Session]:
    for conversation in _conversations(settings):
        losses.update(conversation.losses)
        if not any(message.origin == "model" for message in conversation.messages):
            losses[NO_MODEL_TURN] += 1
            continue
        try:
            session = renderer.render(conversation)
        except WorkloadError as error:
            raise WorkloadError(f"{settings.path or settings.format}: {error}") from error
        yield session


def _conversations(settings: WorkloadSettings) -> Iterator[Conversation]:
    if settings.format == "sample":
        from workloads.formats import conversation_json
        from workloads.sample_paths import CONVERSATIONS

        return conversation_json.load(CONVERSATIONS)
    if settings.format == "conversation":
        from workloads.formats import conversation_json

        return conversation_json.load(_path(settings))
    if settings.format == "tau2":
        from workloads.formats import tau2

        return tau2.load(_path(settings), Path(settings.domain) if settings.domain else None)
    if settings.format == "openhands":
        from workloads.formats import openhands

        return openhands.load(_path(settings))
    raise WorkloadError(f"workload.format={settings.format!r} is unknown; known are {', '.join(FORMATS)}")


def _synthetic(settings: WorkloadSettings, renderer: "Renderer", tokenizer: Path) -> Iterator[Session]:
    from workloads.synthetic import SyntheticSpec, generate
    from workloads.vocabulary import plain_ids

    ids = plain_ids(tokenizer, renderer.vocab_size)
    return generate(
        SyntheticSpec(
            sessions=settings.sessions,
            turns=settings.turns,
            seed=settings.seed,
            first_id=ids.start,
            vocab_size=ids.stop,
        )
    )


def _path(settings: WorkloadSettings) -> Path:
    if not settings.path:
        raise WorkloadError(f"workload.path is not set; name a file or folder of format {settings.format}")
    return Path(settings.path).expanduser()


def _check_ids(session: Session, vocab_size: int, settings: WorkloadSettings, tokenizer: Path) -> None:
    for number, turn in enumerate(session.turns):
        for ids in (turn.delta_ids, turn.output_ids):
            if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
                outside = next(one for one in ids if not 0 <= one < vocab_size)
                raise WorkloadError(
                    f"{settings.path or settings.format}: session {session.session_id}, turn {number} holds token id"
                    f" {outside}, beyond the {vocab_size:,} ids of {tokenizer}; use the tokenizer it was made for"
                )
