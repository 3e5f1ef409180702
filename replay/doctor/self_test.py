"""The last check: start the engine and have it emit tokens it would never choose."""

import asyncio
import tempfile
from pathlib import Path

from engines.base import EngineError
from engines.settings import EngineSettings
from replay.doctor.finding import Finding
from replay.launch import running, warm_up
from replay.model import ModelSettings, prepare
from replay.progress import Progress
from replay.stopping import until_terminated
from workloads.load import load
from workloads.settings import WorkloadSettings

CHECK = "forcing self-test"
WORKLOAD = WorkloadSettings(name="doctor", format="synthetic", sessions=1, turns=1)


def self_test(engine: EngineSettings, model: ModelSettings, progress: Progress) -> Finding:
    """A real start, a few forced tokens of every kind, and a stop."""
    with tempfile.TemporaryDirectory(prefix="ostinato-doctor-") as folder:
        try:
            how = asyncio.run(until_terminated(_forced(engine, model, Path(folder), progress)))
        except EngineError as error:
            first, *rest = str(error).splitlines()
            return Finding(
                check=CHECK, state="failed", found=first, advice=" / ".join(line.strip() for line in rest[-3:])
            )
    return Finding(check=CHECK, state="ok", found=how)


async def _forced(engine: EngineSettings, model: ModelSettings, folder: Path, progress: Progress) -> str:
    found = prepare(model, "none" if engine.launch == "attach" else engine.model_format, progress.show)
    workload = load(WORKLOAD, found.tokenizer)
    async with running(engine, found, workload, folder, progress, prefix=engine.name) as started:
        reply = await started.client.turn(warm_up(workload))
    return f"exactly the forced tokens came back (verified by {reply.verified_by})"
