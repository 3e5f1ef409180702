"""One run: one engine replays one workload into one run folder."""

import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from engines.base import EngineError
from engines.settings import EngineSettings
from replay import environment, validity
from replay.launch import running
from replay.model import Model, ModelSettings, prepare
from replay.progress import Progress, duration
from replay.record import RecordError, RecordWriter, TurnRecord, write_result
from replay.session import replay
from workloads.load import Workload, load
from workloads.session import WorkloadError
from workloads.settings import WorkloadSettings

RESULT_VERSION = 1
MAX_DEATHS = 3
"""An engine that died so often with no session completed in between will not finish the others either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is asked for."""

    engine: EngineSettings
    workload: WorkloadSettings
    model: ModelSettings
    folder: Path
    repeat: int = 0
    retries: int = 1
    on_failure: str = "continue"
    number: int = 0
    """Which run of the command this is, of ``runs``."""
    runs: int = 1
    config: Mapping[str, Any] = field(default_factory=dict)
    """The whole configuration, kept in the result."""

    def __post_init__(self) -> None:
        if self.on_failure not in ("continue", "stop"):
            raise EngineError(f"on_failure={self.on_failure} is not known; set continue or stop")
        if self.retries < 0:
            raise EngineError(f"retries={self.retries} is negative; set 0 or more")

    @property
    def title(self) -> str:
        return f"{self.engine.name} {self.number + 1}/{self.runs}" if self.runs > 1 else self.engine.name


@dataclass
class Outcome:
    """What has happened so far: an interrupted run keeps what is done."""

    status: str = "running"
    error: str | None = None
    workload: Workload | None = None
    model: Model | None = None
    server: dict[str, Any] = field(default_factory=dict)
    warmed_up: bool = False
    sessions: dict[str, str] = field(default_factory=dict)
    turns: list[TurnRecord] = field(default_factory=list)


def execute(run: Run, progress: Progress) -> None:
    """Replay every session; write ``turns.jsonl``, ``server.log`` and ``result.json``.

    Raises:
        WorkloadError, EngineError, RecordError: the run failed; what is done is kept and the result says ``failed``.
        KeyboardInterrupt, SystemExit: it was stopped; what is done is kept and the result says ``interrupted``.
    """
    outcome, clock = Outcome(), environment.clock_pair()
    try:
        outcome.workload, outcome.model = _inputs(run, progress)
        uvloop.run(_replay(run, outcome.workload, outcome.model, outcome, progress))
    except (WorkloadError, EngineError, RecordError) as error:
        outcome.status, outcome.error = "failed", str(error)
        with suppress(RecordError):  # on a full disk, which is named by then
            _conclude(run, outcome, clock)
        raise
    except (KeyboardInterrupt, SystemExit):
        outcome.status, outcome.error = "interrupted", "stopped by a signal"
        _conclude(run, outcome, clock)
        raise
    outcome.status = "complete"
    _conclude(run, outcome, clock)


def _conclude(run: Run, outcome: Outcome, clock: dict[str, int]) -> None:
    write_result(run.folder, environment.redact(_result(run, outcome, clock)))


def _inputs(run: Run, progress: Progress) -> tuple[Workload, Model]:
    """Load the workload, make the model, and refuse what can't work before anything is started."""
    progress.step(f"{run.title} · reading the model")
    model_format = "none" if run.engine.launch == "attach" else run.engine.model_format
    model = prepare(run.model, model_format, progress.show)
    progress.step(f"{run.title} · loading the workload {run.workload.name}")
    workload = load(
        run.workload,
        model.tokenizer,
        progress=lambda session: progress.show(f"{run.title} · loading the workload · {session.session_id}"),
    )
    fits_context(workload, run.engine)
    fits_vocabulary(workload, model)
    return workload, model


def fits_context(workload: Workload, engine: EngineSettings) -> None:
    """Raises EngineError when a session needs more context than the engine is started with."""
    longest = max(workload.sessions, key=lambda session: session.longest_context)
    if longest.longest_context > engine.context:
        raise EngineError(
            f"session {longest.session_id} of workload {workload.name} needs {longest.longest_context:,} tokens of "
            f"context, engine {engine.name} has {engine.context:,}; set engine.context={longest.longest_context} or "
            "shorten the sessions with workload.max_turns",
            kind="context",
        )


def fits_vocabulary(workload: Workload, model: Model) -> None:
    """Raises WorkloadError when the workload holds a token id that the model does not have."""
    if model.vocab_size is None:
        return
    for session in workload.sessions:
        highest = max(max((*turn.delta_ids, *turn.output_ids)) for turn in session.turns)
        if highest >= model.vocab_size:
            raise WorkloadError(
                f"session {session.session_id} of workload {workload.name} holds token id {highest}, "
                f"model {model.name} has {model.vocab_size} ids; set model.tokenizer to that model's tokenizer folder"
            )


async def _replay(run: Run, workload: Workload, model: Model, outcome: Outcome, progress: Progress) -> None:
    waiting = deque((session, 0) for session in workload.sessions)
    meter = Meter(run, workload)
    deaths = 0
    with RecordWriter(run.folder) as writer:

        def keep(record: TurnRecord) -> None:
            writer.append(record)
            outcome.turns.append(record)
            progress.show(meter.text(record))

        while waiting:
            async with running(run.engine, model, workload, run.folder, progress, prefix=run.title) as engine:
                outcome.warmed_up, outcome.server = True, engine.server.describe()
                progress.step(f"{run.title} · replaying {len(waiting)} sessions")
                while waiting:
                    session, attempt = waiting.popleft()
                    await engine.forget(session)
                    failed = await replay(
                        session, engine.client, keep, engine=run.engine.name, attempt=attempt, repeat=run.repeat
                    )
                    if failed is None:
                        outcome.sessions[session.session_id] = "complete"
                        deaths = 0
                        continue
                    if attempt < run.retries:
                        waiting.appendleft((session, attempt + 1))
                    else:
                        outcome.sessions[session.session_id] = "failed"
                        if run.on_failure == "stop":
                            raise EngineError(_failure(failed))
                    if not await engine.healthy():
                        deaths += 1
                        if deaths == MAX_DEATHS:
                            raise EngineError(
                                f"the engine died {deaths} times in a row: {_failure(failed)}", kind="cut"
                            )
                        break
    if "complete" not in outcome.sessions.values():
        raise EngineError(f"every session failed; the last one: {_failure(outcome.turns[-1])}")


def _failure(record: TurnRecord) -> str:
    return f"session {record.session_id}, turn {record.turn}: {record.error}"


class Meter:
    """How far a run is, by tokens: those of the prompts that are new, and those of the answers."""

    def __init__(self, run: Run, workload: Workload) -> None:
        self._run = run
        self._sessions = {session.session_id: (i, session) for i, session in enumerate(workload.sessions, 1)}
        self._total = sum(session.longest_context for session in workload.sessions)
        self._done = self._verified = 0
        self._started_s = time.monotonic()

    def text(self, record: TurnRecord) -> str:
        number, session = self._sessions[record.session_id]
        self._done += record.new_tokens + record.output_tokens
        self._verified += record.output_tokens if record.status == "ok" else 0
        elapsed_s = time.monotonic() - self._started_s
        whole_s = elapsed_s * max(self._total / self._done, 1.0)
        # The runs that follow are taken to last as long as this one.
        left_s = whole_s - elapsed_s + whole_s * (self._run.runs - self._run.number - 1)
        return (
            f"{self._run.title} · session {number}/{len(self._sessions)} · "
            f"turn {record.turn + 1}/{len(session.turns)} · "
            f"{self._verified:,} tokens verified · about {duration(left_s)} left"
        )


def _result(run: Run, outcome: Outcome, clock: dict[str, int]) -> dict[str, Any]:
    workload, model = outcome.workload, outcome.model
    return {
        "version": RESULT_VERSION,
        "status": outcome.status,
        "error": outcome.error,
        "engine": {
            "name": run.engine.name,
            "label": run.engine.label,
            "note": run.engine.note,
            "settings": asdict(run.engine),
            "server": outcome.server,
        },
        "workload": {
            "name": run.workload.name,
            "hash": workload.content_hash if workload else None,
            "sessions": len(workload.sessions) if workload else None,
            "turns": sum(len(session.turns) for session in workload.sessions) if workload else None,
            "losses": dict(workload.losses) if workload else {},
        },
        "model": {"name": run.model.name, "hash": model.hash if model else None},
        "repeat": run.repeat,
        "environment": environment.facts(),
        "config": dict(run.config),
        "clock": clock,
        "sessions": outcome.sessions,
        "validity": [
            asdict(check)
            for check in validity.checks(
                outcome.turns,
                outcome.sessions,
                expected_sessions=len(workload.sessions) if workload else 0,
                warmed_up=outcome.warmed_up,
            )
        ],
    }
