"""From the workload a user asks for to sessions of token ids."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from workloads.archive import unpacked
from workloads.conversation import Conversation
from workloads.formats import registry
from workloads.session import Session, WorkloadError
from workloads.settings import WorkloadSettings
from workloads.tally import Tally
from workloads.vocabulary import plain_ids

if TYPE_CHECKING:
    from workloads.render import Renderer

AUTO = "auto"
FORMATS = ("sample", "sessions", "synthetic", AUTO, *registry.NAMES)

NO_MODEL_TURN = "the model never answers in them"
OTHER_TOKENIZER = "sessions rendered with another tokenizer or chat template: prepare them with this one"
CUT = "turns cut off by workload.max_turns"


class NothingKeptError(WorkloadError):
    """Everything was read, and not one session can be replayed; the tally says why."""


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
    split: str | None = None
    """Which part of a split its sessions are, as their session file or their preset says."""


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

    renderer = renderer_of(settings, tokenizer)
    tally = Tally()
    found = []
    for session in sessions(settings, renderer, tokenizer, tally):
        found.append(session)
        if progress is not None:
            progress(session)
    return Workload(
        name=settings.name,
        sessions=tuple(found),
        content_hash=store.content_hash(found),
        losses=tally.all_losses(),
        vocab_size=renderer.vocab_size,
        split=split_of(settings),
    )


def split_of(settings: WorkloadSettings) -> str | None:
    """Which part of a split the settings name; None where nothing says so.

    Raises:
        WorkloadError: a session file that can't be read.
    """
    from workloads import store
    from workloads.split import SPLITS

    if settings.format == "sessions":
        return store.header(_path(settings)).split
    part = (settings.preset or "").rpartition("_")[2].replace("heldout", "held_out")
    return part if settings.format == "synthetic" and part in SPLITS else None


def renderer_of(settings: WorkloadSettings, tokenizer: Path) -> "Renderer":
    """Return what renders recordings as these settings ask.

    Raises:
        WorkloadError: no usable tokenizer or chat template there.
    """
    from workloads.render import Renderer

    return Renderer(
        tokenizer,
        chat_template=Path(settings.chat_template).expanduser() if settings.chat_template else None,
        on_prefix_break=settings.on_prefix_break,
        allow_template_loss=settings.allow_template_loss,
    )


def sessions(
    settings: WorkloadSettings, renderer: "Renderer", tokenizer: Path, tally: Tally, *, num_proc: int = 1
) -> Iterator[Session]:
    """Yield the sessions one by one, each with an id of its own; ``tally`` fills up on the way.

    Args:
        num_proc: processes that render.

    Raises:
        NothingKeptError: not a single session came out.
        WorkloadError: as `load`.
    """
    if settings.format not in FORMATS:
        raise WorkloadError(f"workload.format={settings.format!r} is unknown; known are {', '.join(FORMATS)}")
    for field in ("max_sessions", "max_turns"):
        value = getattr(settings, field)
        if value is not None and value < 1:
            raise WorkloadError(f"workload.{field}={value}: set it to 1 or more, or to null for all")
    names: dict[str, int] = {}
    for session in islice(_all_sessions(settings, renderer, tokenizer, tally, num_proc), settings.max_sessions):
        repeat = names[session.session_id] = names.get(session.session_id, 0) + 1
        if repeat > 1:
            session = replace(session, session_id=f"{session.session_id}~{repeat}")
        if settings.max_turns is not None and len(session.turns) > settings.max_turns:
            tally.losses[CUT] += len(session.turns) - settings.max_turns
            session = replace(session, turns=session.turns[: settings.max_turns])
        _check_ids(session, renderer.vocab_size, settings, tokenizer)
        tally.kept += 1
        yield session
    if not tally.kept:
        raise NothingKeptError(_nothing_kept(settings.path or settings.format, tally))


def _nothing_kept(where: str, tally: Tally) -> str:
    if tally.first_refused is None:
        return f"{where}: no session with a model turn in it, so there is nothing to replay; use another file"
    return f"{where}: not one of {tally.read:,} sessions can be kept; the first: {tally.first_refused}"


def _all_sessions(
    settings: WorkloadSettings, renderer: "Renderer", tokenizer: Path, tally: Tally, num_proc: int
) -> Iterator[Session]:
    if settings.split is not None and settings.format not in ("sessions", AUTO):
        raise WorkloadError(
            f"workload.split={settings.split}: only a session file names its split; `prepare` one, then"
            " `prepare split` it"
        )
    if settings.format == "synthetic":
        yield from _counted(_synthetic(settings, renderer, tokenizer), tally)
    elif settings.format == "sample":
        from workloads.formats import conversation_json
        from workloads.sample_paths import CONVERSATIONS

        yield from _rendered(conversation_json.load(CONVERSATIONS), settings, renderer, tokenizer, tally, num_proc)
        yield from _counted(_synthetic(settings, renderer, tokenizer), tally)
    elif settings.format == "sessions":
        yield from _counted(_stored(_path(settings), settings, renderer, tally), tally)
    else:
        with unpacked(_path(settings)) as path:
            yield from _recorded(path, settings, renderer, tokenizer, tally, num_proc)


def _recorded(
    path: Path, settings: WorkloadSettings, renderer: "Renderer", tokenizer: Path, tally: Tally, num_proc: int
) -> Iterator[Session]:
    if settings.format == AUTO:
        from workloads.detect import detect

        recorded = registry.named(detect(path))
    else:
        recorded = registry.named(settings.format)
    if recorded.is_trace:
        ids = plain_ids(tokenizer, renderer.vocab_size)
        traced = recorded.sessions(
            path, vocab=ids, seed=settings.seed, block_size=settings.block_size, losses=tally.losses
        )
        yield from _counted(traced, tally)
    else:
        domain = Path(settings.domain).expanduser() if settings.domain else None
        conversations = _named_for(_path(settings), path, recorded.load(path, domain))
        yield from _rendered(conversations, settings, renderer, tokenizer, tally, num_proc)


def _named_for(archive: Path, path: Path, conversations: Iterator[Conversation]) -> Iterator[Conversation]:
    """Conversations without an id are called for their place, which may not be a temporary folder."""
    for one in conversations:
        task = None if one.task_id is None else one.task_id.replace(str(path), str(archive))
        yield replace(one, conversation_id=one.conversation_id.replace(str(path), str(archive)), task_id=task)


def _rendered(
    conversations: Iterator[Conversation],
    settings: WorkloadSettings,
    renderer: "Renderer",
    tokenizer: Path,
    tally: Tally,
    num_proc: int,
) -> Iterator[Session]:
    from workloads.rendering import rendered

    make = partial(renderer_of, settings, tokenizer)
    for conversation, outcome in rendered(conversations, make, renderer=renderer, num_proc=num_proc):
        tally.read += 1
        if isinstance(outcome, WorkloadError):
            tally.refuse(conversation.conversation_id, str(outcome))
            continue
        tally.losses.update(conversation.losses)
        if outcome is None:
            tally.drop(NO_MODEL_TURN)
        else:
            tally.losses.update(outcome.losses)
            yield outcome.session


def _counted(found: Iterator[Session], tally: Tally) -> Iterator[Session]:
    for session in found:
        tally.read += 1
        yield session


def _stored(path: Path, settings: WorkloadSettings, renderer: "Renderer", tally: Tally) -> Iterator[Session]:
    from workloads import store
    from workloads.split import require_split

    header = store.header(path)
    require_split(path, header.split, settings.split)
    foreign = header.tokenizer_hash != renderer.tokenizer_hash
    for session in store.read(path):
        tally.losses[OTHER_TOKENIZER] += foreign
        yield session


def _synthetic(settings: WorkloadSettings, renderer: "Renderer", tokenizer: Path) -> Iterator[Session]:
    from workloads import presets
    from workloads.synthetic import SyntheticSpec, generate

    ids = plain_ids(tokenizer, renderer.vocab_size)
    if settings.preset is not None:
        return presets.generate(settings.preset, seed=settings.seed, first_id=ids.start, vocab_size=ids.stop)
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
