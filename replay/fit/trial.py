"""One try: a real start, the longest request really replayed, and the memory that was left."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from engines.base import EngineError, ForcedRequest
from engines.settings import EngineSettings
from replay.doctor.engine import wants_gpu
from replay.fit.memory import Left, MemoryWatch
from replay.fit.settings import FitSettings
from replay.launch import running
from replay.model import Model
from replay.progress import Progress
from workloads.load import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Longest:
    """The request that needs the most context."""

    session_id: str
    turn: int
    request: ForcedRequest

    @property
    def tokens(self) -> int:
        return len(self.request.prompt_ids) + len(self.request.output_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    value: int
    reason: str | None
    """Why it does not pass; None when it does."""
    seconds: float
    left: Left


def longest(workload: Workload) -> Longest:
    """Of all turns of all sessions, tool definitions and history included, as the prompt holds them."""
    best: tuple[int, str, int] | None = None
    for session in workload.sessions:
        for number, (turn, prompt) in enumerate(zip(session.turns, session.prompts(), strict=True)):
            total = len(prompt) + len(turn.output_ids)
            if best is None or total > best[0]:
                best = (total, session.session_id, number)
    assert best is not None
    _, session_id, number = best
    session = next(one for one in workload.sessions if one.session_id == session_id)
    prompt = next(prompt for i, prompt in enumerate(session.prompts()) if i == number)
    request = ForcedRequest(prompt_ids=prompt, output_ids=session.turns[number].output_ids)
    return Longest(session_id=session_id, turn=number, request=request)


async def attempt(
    value: int,
    engine: EngineSettings,
    model: Model,
    workload: Workload,
    wanted: Longest,
    fit: FitSettings,
    folder: Path,
    progress: Progress,
) -> Try:
    """Start the engine with this value and replay the longest request.

    Raises:
        EngineError: a failure that has nothing to do with the value.
    """
    assert fit.option is not None
    sized = replace(engine, options={**engine.options, fit.option: fit.value_text(value)})
    begun, reason = time.monotonic(), None
    with MemoryWatch() as memory:
        try:
            async with running(sized, model, workload, folder, progress, prefix=f"{fit.option}={value}") as started:
                memory.follow(started.server.describe().get("pid"))
                progress.step(f"{fit.option}={value} · replaying the longest request ({wanted.tokens:,} tokens)")
                await started.client.turn(wanted.request)
                memory.sample()
        except EngineError as error:
            if error.kind == "setting":  # no other value would mend it
                raise
            reason = str(error).splitlines()[0]
    reason = reason or short_of_memory(memory.left, fit, gpus=wants_gpu(engine))
    return Try(value=value, reason=reason, seconds=time.monotonic() - begun, left=memory.left)


def short_of_memory(left: Left, fit: FitSettings, *, gpus: bool) -> str | None:
    """Which margin was not kept; None when all were."""
    for index, free in enumerate(left.gpu_free_mib if gpus else ()):
        if free < fit.margin_mib:
            return f"GPU {index} kept {free:,} MiB free, {fit.margin_mib:,} are wanted (fit.margin_mib)"
    if left.host_free_mib is not None and left.host_free_mib < fit.host_margin_mib:
        return f"the machine kept {left.host_free_mib:,} MiB available, {fit.host_margin_mib:,} are wanted"
    if fit.rss_mib is not None and left.rss_mib is not None and left.rss_mib > fit.rss_mib:
        return f"the engine took {left.rss_mib:,} MiB, {fit.rss_mib:,} are allowed (fit.rss_mib)"
    return None
