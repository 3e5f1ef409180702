"""What a user may choose about telemetry (the ``telemetry`` keys of a run)."""

from dataclasses import dataclass

from engines.base import EngineError


@dataclass
class TelemetrySettings:
    """Plain and mutable because OmegaConf builds its schema from it; treated as read-only everywhere else."""

    every_s: float | None = 1.0
    """Between two samples; None takes none."""
    server_metrics: bool = False
    """Also ask the engine for ``/metrics`` at each sample. Off: a server that answers computes less meanwhile."""


def check(telemetry: TelemetrySettings) -> None:
    """Raises EngineError when the interval is none."""
    if telemetry.every_s is not None and telemetry.every_s <= 0:
        raise EngineError(f"telemetry.every_s={telemetry.every_s:g} must be above 0; null takes no samples")
