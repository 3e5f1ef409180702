"""What a run works on, made ready and checked before an engine is started."""

from dataclasses import replace
from typing import TYPE_CHECKING

from engines.base import EngineError
from engines.settings import EngineSettings
from replay import order, pacing
from replay.model import Model, prepare
from replay.prefix import with_distinct_prefixes
from replay.progress import Progress
from workloads.load import Workload, load
from workloads.session import WorkloadError

if TYPE_CHECKING:
    from replay.run import Run


def inputs(run: "Run", progress: Progress) -> tuple[Workload, Model]:
    """Load the workload, make the model, and refuse what can't work. The sessions are in the order of their replay.

    Raises:
        WorkloadError, EngineError: the setting or file that stands in the way.
    """
    progress.step(f"{run.title} · reading the model")
    model_format = "none" if run.engine.launch == "attach" else run.engine.model_format
    model = prepare(run.model, model_format, progress.show)
    progress.step(f"{run.title} · loading the workload {run.workload.name}")
    workload = load(
        run.workload,
        model.tokenizer,
        progress=lambda session: progress.show(f"{run.title} · loading the workload · {session.session_id}"),
    )
    pacing.check_workload(run.arrival, workload)
    workload = with_distinct_prefixes(workload, run.arrival.distinct_prefix_tokens, run.arrival.seed)
    fits_context(workload, run.engine)
    fits_vocabulary(workload, model)
    sessions = order.ordered_sessions(workload.sessions, run.order, repeat=run.repeat)
    return replace(workload, sessions=sessions), model


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
