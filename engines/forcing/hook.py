"""Forcing by an import hook: a Python engine's sampling function is wrapped as its process loads it.

The engine stays as it was installed. ``hooks/`` is put on its PYTHONPATH, where Python finds ``sitecustomize`` in
each of its processes; that waits until the engine imports the module that samples (SGLang, sglang-kt, FreeToken).
"""

import os
import shutil
from pathlib import Path

from engines.base import Answer, EngineError, ForcedRequest, Mount
from engines.forcing.planned import PlannedForcing
from engines.settings import EngineSettings

HOOKS = Path(__file__).with_name("hooks")


class HookForcing(PlannedForcing):
    """For engines that sample in Python.

    Raises:
        EngineError: a server that somebody else starts.
    """

    name = "hook"

    def __init__(self, settings: EngineSettings, folder: Path) -> None:
        if settings.launch == "attach":
            raise EngineError(
                "engine.forcing=hook needs engine.launch=process or container, as the hook is loaded when the server "
                "starts; set engine.forcing=one_token for a server that already runs"
            )
        inherited = os.environ.get("PYTHONPATH") if settings.launch == "process" else None
        self._path = settings.env.get("PYTHONPATH", inherited)
        super().__init__(settings, folder)
        self._hooks = self._plan.folder / "hooks"
        # A copy: the one place that a container must see, and no byte code is written into this package.
        shutil.copytree(HOOKS, self._hooks, ignore=shutil.ignore_patterns("__pycache__", ".*"))

    def environment(self) -> dict[str, str]:
        path = f"{self._hooks}{os.pathsep}{self._path}" if self._path else str(self._hooks)
        return {"PYTHONPATH": path, "OSTINATO_FORCE_PLAN": str(self._plan.path)}

    def mounts(self) -> tuple[Mount, ...]:
        return Mount(path=self._hooks), Mount(path=self._plan.path, writable=True)

    def verify(self, request: ForcedRequest, answer: Answer) -> tuple[str, None]:
        if self._plan.pid is None:
            raise EngineError(
                "the server loaded no sampler that engine.forcing=hook wraps; is it SGLang, sglang-kt or FreeToken, "
                "and is its Python started without -I, -E and -S, which hide the hook?"
            )
        super().verify(request, answer)
        return "ids", None
