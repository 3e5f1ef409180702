"""A sweep that ends with the gate's exit code: which run is held against which (the key ``gate`` of a run)."""

from dataclasses import dataclass, field


@dataclass
class GateSettings:
    """Plain and mutable because OmegaConf builds its schema from it; treated as read-only everywhere else."""

    base: str | None = None
    """Engine of the sweep (or part of its run folder's name) that the candidate is held against, or a file of
    ``analyse export-baseline``; None: no gate."""
    candidate: str | None = None
    margin_percent: float = 3.0
    """What is too small to matter."""
    metrics: list[str] = field(default_factory=list)
    """As ``compare --metric``; empty for the usual ones."""
    judge: str = "analysis.sweep_gate.judge"
    """Called with the finished folder and these settings; returns the exit code: 0 pass, 1 regression, 2 nothing to
    compare, 3 inconclusive."""
