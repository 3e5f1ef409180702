"""An engine as a user describes it (the ``engine`` group in ``conf/``)."""

from dataclasses import dataclass, field


@dataclass
class EngineSettings:
    """Plain and mutable because OmegaConf builds its schema from it; treated as read-only everywhere else.

    ``command`` and ``env`` may hold the placeholders ``{python}``, ``{model}``, ``{port}``, ``{context}``,
    ``{threads}``, ``{binary}``, and ``{name}`` for each entry of ``options`` (all filled by ``str.format_map``), so
    that a number in a command has a name of its own: ``engine.options.decode_ms=5``.
    """

    name: str
    """Short name: run folders, records."""
    label: str
    """Name in reports."""
    dialect: str
    """A module of ``engines/dialects``."""
    forcing: str
    """``field`` (the server takes ``forced_tokens``), ``shim`` (LD_PRELOAD) or ``none``."""
    launch: str = "process"
    """``process`` starts ``command``; ``attach`` uses the server at ``url``."""
    command: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    """Placeholders of this engine's own for ``command`` and ``env``."""
    binary: str | None = None
    """The server's executable, where the user brings one."""
    model_format: str = "safetensors"
    """What ``{model}`` names: a ``safetensors`` folder, a ``gguf`` file, or ``none``."""
    url: str | None = None
    """launch=attach: where the running server answers."""
    port: int = 0
    """0 takes a free one."""
    health: str = "/health"
    start_timeout_s: float = 120.0
    stop_grace_s: float = 5.0
    request_timeout_s: float = 600.0
    """The longest a whole request may take."""
    stall_timeout_s: float = 120.0
    """The longest a stream may be silent."""
    context: int = 32768
    """Tokens of context the server is started with."""
    threads: int = 2
    note: str = ""
    """Said under the tables of every report that shows this engine."""
