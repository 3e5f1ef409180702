"""Brings an engine to the point where a measured turn may be sent."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from engines.attach import AttachedServer
from engines.base import EngineError, ForcedRequest, Forcing, Reply
from engines.client import EngineClient
from engines.container.server import ContainerServer
from engines.dialects.registry import dialect
from engines.forcing.registry import forcing
from engines.forcing.self_test import ENDS, self_test
from engines.process import ProcessServer
from engines.served_model import served_model
from engines.server import Server
from engines.settings import EngineSettings
from engines.state import Lesson, keeps_state, note_lesson, prepare_state
from replay.model import Model
from replay.progress import Progress
from workloads.load import Workload
from workloads.session import Session

WARM_UP_PROMPT, WARM_UP_OUTPUT = 64, 8


@dataclass(frozen=True, slots=True)
class Engine:
    """A healthy engine that was seen to emit forced tokens, warmed up."""

    server: Server
    client: EngineClient
    health: str

    async def healthy(self) -> bool:
        return self.server.alive() and await self.client.healthy(self.health)

    async def forget(self, session: Session) -> None:
        """Make an engine that keeps one sequence start the session cold, whatever it replayed before.

        Sessions are then independent of their order, and a session that is tried again finds no prompt of its own.
        """
        with suppress(EngineError):  # what ails the engine shows in the turn that follows, where it is recorded
            await self.client.turn(unrelated(session))


@asynccontextmanager
async def running(
    settings: EngineSettings,
    model: Model,
    workload: Workload,
    folder: Path,
    progress: Progress,
    *,
    prefix: str,
    tries: int = 1,
) -> AsyncIterator[Engine]:
    """Start the engine, force a few tokens on it, warm it up; stop it at the end, whatever happens.

    Args:
        tries: how often; more than once for an engine that is known to start.

    Raises:
        EngineError: it does not start, does not get healthy, or emits other tokens than the forced ones.
    """
    async with AsyncExitStack() as stack:
        for left in reversed(range(tries)):
            try:
                engine = await stack.enter_async_context(
                    _started(settings, model, workload, folder, progress, prefix)
                )
                break
            except EngineError:
                if not left:
                    raise
        yield engine


@asynccontextmanager
async def _started(
    settings: EngineSettings, model: Model, workload: Workload, folder: Path, progress: Progress, prefix: str
) -> AsyncIterator[Engine]:
    state = prepare_state(settings, folder) if keeps_state(settings) else None
    force = forcing(settings, folder)
    try:
        server = _server(settings, model, folder, force)
        try:
            progress.step(f"{prefix} · starting the engine")
            await server.start()
            async with WatchedClient(
                server, settings, force, model=await served_model(settings, server.url)
            ) as client:
                try:
                    progress.step(f"{prefix} · checking that it emits forced tokens")
                    await self_test(client, model.vocab_size or workload.vocab_size, ends=_ends(workload))
                    progress.step(f"{prefix} · warming up")
                    await client.turn(warm_up(workload))
                except EngineError as error:
                    if not await dies(server):
                        raise
                    said = "\n".join(server.log_tail())
                    how = await server.ended()
                    message = f"the engine died at its first requests ({how}); its last log lines:\n{said}"
                    raise EngineError(message, kind="start") from error
                yield Engine(server, client, settings.health)
        finally:
            progress.step(f"{prefix} · stopping the engine")
            await server.stop()
            if state is not None:
                note_lesson(state, _lesson(settings, workload))
    finally:
        force.close()


def _ends(workload: Workload) -> list[int]:
    """What the recorded answers end with: the model's end tokens, the most frequent ones."""
    last = Counter(turn.output_ids[-1] for session in workload.sessions for turn in session.turns)
    return [id_ for id_, _ in last.most_common(ENDS)]


def _lesson(settings: EngineSettings, workload: Workload) -> Lesson:
    return Lesson(
        engine=settings.name, workload=workload.name, workload_hash=workload.content_hash, split=workload.split
    )


class WatchedClient(EngineClient):
    """Says of a connection that broke off how its server ended, if it did."""

    def __init__(self, server: Server, settings: EngineSettings, force: Forcing, *, model: str | None) -> None:
        super().__init__(
            server.url,
            dialect(settings.dialect),
            force,
            request_timeout_s=settings.request_timeout_s,
            stall_timeout_s=settings.stall_timeout_s,
            model=model,
        )
        self._server, self._health = server, settings.health

    async def turn(self, request: ForcedRequest) -> Reply:
        try:
            return await super().turn(request)
        except EngineError as error:
            if error.kind not in ("cut", "unreachable") or await self.healthy(self._health):
                raise
            if not await dies(self._server) or (how := await self._server.ended()) is None:
                raise
            raise EngineError(f"the engine died ({how}): {error}", kind=error.kind) from error


async def dies(server: Server) -> bool:
    """Whether the engine is gone, or is so within half a second: its connections break before it is."""
    for _ in range(10):
        if not server.alive():
            return True
        await asyncio.sleep(0.05)
    return False


def _server(settings: EngineSettings, model: Model, folder: Path, force: Forcing) -> Server:
    if settings.launch == "attach":
        return AttachedServer(settings)
    if settings.launch == "process":
        return ProcessServer(settings, model=model.file, folder=folder, environment=force.environment())
    if settings.launch == "container":
        return ContainerServer(
            settings, model=model.file, folder=folder, environment=force.environment(), mounts=force.mounts()
        )
    raise EngineError(f"engine.launch={settings.launch} is not known; set process, container or attach")


def warm_up(workload: Workload) -> ForcedRequest:
    """Tokens of the workload in reverse: real ids, yet no session finds a prefix of its prompt in the cache."""
    turn = workload.sessions[0].turns[0]
    ids = (turn.delta_ids + turn.output_ids)[::-1]
    return ForcedRequest(prompt_ids=ids[:WARM_UP_PROMPT], output_ids=turn.output_ids[:WARM_UP_OUTPUT])


def unrelated(session: Session) -> ForcedRequest:
    """A short request whose prompt shares no prefix with the session's."""
    turn = session.turns[0]
    first = turn.delta_ids[0]
    other = next((id_ for id_ in turn.delta_ids + turn.output_ids if id_ != first), first)
    return ForcedRequest(prompt_ids=(other, other), output_ids=turn.output_ids[:1])
