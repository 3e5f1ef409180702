"""One run: one engine replays one workload into one run folder."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import uvloop

from engines.base import EngineError
from engines.forcing.registry import note
from engines.settings import EngineSettings
from engines.state import check_state
from replay import comparability, environment, order, pacing, pressure
from replay.attempts import Attempt, Queue
from replay.inputs import inputs
from replay.launch import running
from replay.meter import Meter
from replay.model import Model, ModelSettings
from replay.order import OrderSettings
from replay.pacing import ArrivalSettings, start_offsets_s
from replay.pressure import Pressure, PressureSettings
from replay.progress import Progress
from replay.record import RecordError, RecordWriter, TurnRecord, write_result
from replay.redact import redact
from replay.resume import Earlier, RefusedError
from replay.stopping import until_terminated
from replay.telemetry import settings as telemetry
from replay.telemetry.settings import TelemetrySettings
from replay.tune import TuneSettings, refusal
from replay.validity import checks
from replay.watch import Observed, Watch
from replay.workers import replay_waiting
from workloads.load import Workload
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
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    config: Mapping[str, Any] = field(default_factory=dict)
    """The whole configuration, kept in the result."""
    command: Sequence[str] = ()
    """What was typed to get this run, of a sweep this one alone; kept in the result."""
    arrival: ArrivalSettings = field(default_factory=ArrivalSettings)
    order: OrderSettings = field(default_factory=OrderSettings)
    pressure: PressureSettings = field(default_factory=PressureSettings)
    tune: TuneSettings = field(default_factory=TuneSettings)
    resume: bool = False
    """Go on with what ``folder`` holds."""
    config_hash: str | None = None
    """Of what ``config`` measures; kept in the result, by which a later command knows this run again."""

    def __post_init__(self) -> None:
        if self.on_failure not in ("continue", "stop"):
            raise EngineError(f"on_failure={self.on_failure} is not known; set continue or stop")
        for name in ("retries", "repeat"):
            if (number := getattr(self, name)) < 0:
                raise EngineError(f"{name}={number} is negative; set 0 or more")
        if self.engine.cache_block_tokens < 1:
            raise EngineError(f"engine.cache_block_tokens={self.engine.cache_block_tokens} is no size; set 1 or more")
        check_state(self.engine)
        pacing.check(self.arrival, self.engine)
        order.check(self.order)
        pressure.check(self.pressure)
        telemetry.check(self.telemetry)
        if wrong := refusal(self.tune, self.workload):
            raise EngineError(wrong)

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
    observed: Observed = field(default_factory=Observed)
    facts: Mapping[str, Any] = field(default_factory=environment.facts)
    clock: Mapping[str, int] = field(default_factory=environment.clock_pair)
    resumed: Sequence[Mapping[str, int]] = ()
    """The same, of each later command that went on with the run."""


def execute(run: Run, progress: Progress) -> None:
    """Replay every session; write ``turns.jsonl``, ``server.log`` and ``result.json``.

    Raises:
        WorkloadError, EngineError, RecordError: the run failed; what is done is kept and the result says ``failed``.
        KeyboardInterrupt, SystemExit: it was stopped; what is done is kept and the result says ``interrupted``.
    """
    earlier = Earlier.of(run.folder) if run.resume else Earlier()
    outcome = Outcome(turns=list(earlier.turns))
    if earlier.turns:
        outcome.resumed = [*earlier.result.get("resumed", ()), outcome.clock]
        outcome.clock = earlier.result["clock"]
    else:
        _keep_result(run, outcome)
    try:
        outcome.workload, outcome.model = inputs(run, progress)
        outcome.sessions = dict.fromkeys(earlier.complete(outcome.workload), "complete")
        outcome.server, outcome.warmed_up = earlier.server, bool(outcome.sessions)
        earlier.refuse_if_changed(_written(run, outcome))
        uvloop.run(until_terminated(_replay(run, outcome.workload, outcome.model, outcome, earlier, progress)))
    except RefusedError:
        raise
    except (WorkloadError, EngineError, RecordError) as error:
        outcome.status, outcome.error = "failed", str(error)
        with suppress(RecordError):  # on a full disk, which is named by then
            _conclude(run, outcome, earlier)
        raise
    except (KeyboardInterrupt, SystemExit):
        outcome.status, outcome.error = "interrupted", "stopped by a signal"
        _conclude(run, outcome, earlier)
        raise
    outcome.status = "complete"
    _keep_result(run, outcome)


def _conclude(run: Run, outcome: Outcome, earlier: Earlier) -> None:
    """Keep the result, unless that of an earlier command says more: what it ran on is known."""
    if outcome.workload or not earlier.turns:
        _keep_result(run, outcome)


def _keep_result(run: Run, outcome: Outcome) -> None:
    """A run that is killed leaves the newest of these, with the status ``running``."""
    write_result(run.folder, _written(run, outcome))


def _written(run: Run, outcome: Outcome) -> dict[str, Any]:
    written: dict[str, Any] = redact(_result(run, outcome))
    return written


async def _replay(
    run: Run, workload: Workload, model: Model, outcome: Outcome, earlier: Earlier, progress: Progress
) -> None:
    done = earlier.complete(workload)
    queue = Queue(workload.sessions, retries=run.retries, attempts=earlier.attempts(), done=done)
    offsets_s = start_offsets_s(run.arrival, len(workload.sessions))
    left = tuple(session for session in workload.sessions if session.session_id not in done)
    meter = Meter(run.title, replace(workload, sessions=left), runs_left=run.runs - run.number - 1)
    deaths = 0
    one_at_a_time = asyncio.Lock()

    def keep(record: TurnRecord) -> None:
        writer.append(record)
        outcome.turns.append(record)
        progress.show(meter.text(record))

    async def concluded(attempt: Attempt, failed: TurnRecord | None) -> None:
        nonlocal deaths
        outcome.sessions[attempt.session.session_id] = "failed" if failed else "complete"
        if failed is None:
            deaths = 0
        async with one_at_a_time:
            # Beside the event loop, which stamps what other sessions receive meanwhile.
            await asyncio.to_thread(_settle, run, writer, _written(run, outcome))
        if failed and run.on_failure == "stop":
            raise EngineError(_failure(failed), kind="http")

    with (
        RecordWriter(run.folder) as writer,
        Watch(run.folder, run.telemetry, outcome.observed) as watch,
        Pressure(run.pressure, run.folder) as pressure,
    ):
        while queue:
            # It started before, so that a start that fails now is no wrong setting.
            tries = MAX_DEATHS if deaths else 1
            async with running(
                run.engine, model, workload, run.folder, progress, prefix=run.title, tries=tries
            ) as engine:
                outcome.warmed_up, outcome.server = True, engine.server.describe()
                earlier.refuse_if_changed(_written(run, outcome))
                _keep_result(run, outcome)
                watch.follow(engine.server)
                pressure.begin()
                progress.step(f"{run.title} · replaying {len(queue)} sessions")
                dead = await replay_waiting(
                    queue,
                    engine,
                    run.arrival,
                    offsets_s,
                    name=run.engine.name,
                    repeat=run.repeat,
                    keep=keep,
                    concluded=concluded,
                )
            if dead is not None:
                deaths += 1
                if deaths == MAX_DEATHS:
                    raise EngineError(f"the engine died {deaths} times in a row: {_failure(dead)}", kind="cut")
    if "complete" not in outcome.sessions.values():
        raise EngineError(f"every session failed; the last one: {_failure(outcome.turns[-1])}")


def _settle(run: Run, writer: RecordWriter, result: dict[str, Any]) -> None:
    writer.sync()
    write_result(run.folder, result)


def _failure(record: TurnRecord) -> str:
    return f"session {record.session_id}, turn {record.turn}: {record.error}"


def _turns_by_session(workload: Workload) -> dict[str, int]:
    """So that a reader of the records knows when some are lost."""
    return {session.session_id: len(session.turns) for session in workload.sessions}


def _result(run: Run, outcome: Outcome) -> dict[str, Any]:
    workload, model = outcome.workload, outcome.model
    result = {
        "version": RESULT_VERSION,
        "status": outcome.status,
        "error": outcome.error,
        "engine": {
            "name": run.engine.name,
            "label": run.engine.label,
            "note": note(run.engine),
            "settings": asdict(run.engine),
            "server": outcome.server,
        },
        "workload": {
            "name": run.workload.name,
            "hash": workload.content_hash if workload else None,
            "sessions": len(workload.sessions) if workload else None,
            "turns": sum(len(session.turns) for session in workload.sessions) if workload else None,
            "turns_by_session": _turns_by_session(workload) if workload else {},
            "split": workload.split if workload else None,
            "losses": dict(workload.losses) if workload else {},
        },
        "model": {"name": run.model.name, "hash": model.hash if model else None},
        "repeat": run.repeat,
        "environment": dict(outcome.facts),
        "config": dict(run.config),
        "config_hash": run.config_hash,
        "command": list(run.command),
        "clock": dict(outcome.clock),
        "resumed": [dict(clock) for clock in outcome.resumed],
        "sessions": outcome.sessions,
        "telemetry": None,
        "validity": [],
    }
    if outcome.status != "running":
        result["telemetry"] = outcome.observed.summary(outcome.turns)
        result["validity"] = [
            asdict(check)
            for check in checks.checks(
                outcome.turns,
                outcome.sessions,
                expected_sessions=len(workload.sessions) if workload else 0,
                warmed_up=outcome.warmed_up,
                losses=workload.losses if workload else {},
                cache_block_tokens=run.engine.cache_block_tokens,
                observed=outcome.observed,
            )
        ]
    return result | {"comparability": comparability.key(result)}
