"""The workload a user asks for (the ``workload`` group in ``conf/``)."""

from dataclasses import dataclass


@dataclass
class WorkloadSettings:
    """Plain and mutable because OmegaConf builds its schema from it; treated as read-only everywhere else."""

    name: str
    """Shown in reports."""
    format: str
    """``sample`` (bundled), ``sessions`` (a rendered session file), ``synthetic``, ``tau2`` or ``openhands``."""
    path: str | None = None
    """A file or folder of that format; not used by ``sample`` and ``synthetic``."""
    max_sessions: int | None = None
    """Replay only the first so many sessions."""
    max_turns: int | None = None
    """Cut each session after so many turns."""
    domain: str | None = None
    """tau2: a folder or file with the policies and tool schemas that result files leave out."""
    sessions: int = 4
    """synthetic: how many sessions."""
    turns: int = 12
    """synthetic: model calls a session."""
    seed: int = 0
    """synthetic: the seed of everything drawn."""
