"""Ray as a launcher needs it: connected, and with hosts that take benchmarks."""

import importlib
import os
import signal
from collections.abc import Mapping
from typing import Any

from replay.record import RecordError

DOCS = "docs/cluster.md has the whole set-up"


def connect(settings: Mapping[str, Any]) -> int:
    """Connect to the cluster, or start one on this machine, as ``ray.init`` in the launcher's settings says.

    Returns:
        how many benchmarks its hosts take at once.

    Raises:
        RecordError: no cluster answers, or none of its hosts takes a benchmark: Ray would wait for one for ever.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray: Any = importlib.import_module("ray")
    init = dict(settings["init"])
    terminate = signal.getsignal(signal.SIGTERM)  # which Ray replaces by its own
    if not ray.is_initialized():
        try:
            ray.init(**init)
        except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
            said = str(error).strip().splitlines()[0]
            raise RecordError(
                f"hydra.launcher.ray.init.address={init.get('address')}: {said}; start Ray on every host "
                f"(`ray start`) with the same RAY_AUTH_MODE and token, or use hydra/launcher=ray_local; {DOCS}"
            ) from error
    signal.signal(signal.SIGTERM, terminate)
    wanted = dict(settings["remote"].get("resources") or {})
    there = ray.cluster_resources()
    if missing := [name for name in wanted if not there.get(name)]:
        disconnect()
        raise RecordError(
            f"no host of the Ray cluster offers {missing[0]}; start each with "
            f"`ray start … --resources='{{\"{missing[0]}\": 1}}'`; {DOCS}"
        )
    return max(1, int(min((there[name] / share for name, share in wanted.items()), default=there.get("CPU", 1))))


class Submitted:
    """Runs that are with the cluster. The launcher's own ``launch`` waits for one where nothing can stop it."""

    def __init__(self) -> None:
        self._ray: Any = importlib.import_module("ray")
        self._launch: Any = importlib.import_module(
            "hydra_plugins.hydra_ray_launcher._launcher_util"
        ).launch_job_on_ray
        self._references: set[Any] = set()

    def run(self, launcher: Any, config: Any, singletons: Any) -> Any:
        """Submit as the launcher does, and wait; returns Hydra's ``JobReturn``. Raises what Ray does."""
        reference = self._launch(
            launcher.hydra_context, launcher.ray_cfg.remote, config, launcher.task_function, singletons
        )
        self._references.add(reference)
        try:
            return self._ray.get(reference)
        finally:
            self._references.discard(reference)

    def cancel(self, *, force: bool) -> None:
        """Ctrl-C for those that run, wherever that is; with ``force`` their processes are killed."""
        for reference in list(self._references):
            self._ray.cancel(reference, force=force, recursive=False)


def disconnect() -> None:
    ray: Any = importlib.import_module("ray")
    if ray.is_initialized():
        ray.shutdown()
