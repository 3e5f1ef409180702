"""An engine as a user describes it (the ``engine`` group in ``conf/``)."""

from dataclasses import dataclass, field, replace


@dataclass
class ContainerSettings:
    """How ``launch=container`` runs an engine. Mutable for OmegaConf, read-only everywhere else."""

    image: str | None = None
    """A tag or, to be sure of the same engine tomorrow, ``name@sha256:…``."""
    entrypoint: list[str] | None = None
    """None keeps the image's own; ``engine.command`` is passed to it either way."""
    command: list[str] = field(default_factory=list)
    """What runs inside, where it differs from ``engine.command``; the same placeholders, ``{model}`` inside the
    container."""
    gpus: str | None = None
    """``all``, or device numbers as in ``0,1``; None asks for no GPU."""
    cpuset_cpus: str | None = None
    """Cores, as in ``0-47``."""
    cpuset_mems: str | None = None
    """NUMA nodes whose memory it may take, as in ``0,1``."""
    memory: str | None = None
    """Limit, as in ``64g``; the engine is killed beyond it."""
    shm_size: str | None = None
    ulimits: dict[str, int] = field(default_factory=dict)
    """Soft and hard alike; -1 is unlimited. ``memlock: -1`` lets an engine page-lock its experts."""
    network: str = "host"
    """``host`` costs nothing on Linux; ``bridge`` publishes the port on 127.0.0.1 through Docker's proxy, which adds
    about 0.2 ms to the TTFT."""
    mounts: dict[str, str] = field(default_factory=dict)
    """Host folder or file → path inside, read-only."""
    user: str | None = None
    """None takes this process's user and group, so that what the engine writes belongs to who ran it."""
    dialect: str | None = None
    """Where another server runs inside than ``engine.command`` starts: its dialect, its way of forcing, its note."""
    forcing: str | None = None
    note: str | None = None


@dataclass
class CapacitySettings:
    """What ``engines fit`` searches: the value of one option at which the longest request still fits. Mutable for
    OmegaConf, read-only everywhere else."""

    option: str | None = None
    """A name in ``engine.options``; None when nothing of this engine is to be sized."""
    low: int = 0
    high: int = 0
    step: int = 1
    """The search tries ``low``, ``high`` and whole steps from ``low`` between them."""
    prefer: str = "largest"
    """``largest``: the higher, the more memory it takes; ``smallest``: the lower, the more."""
    text: str = "{value}"
    """The option's text, where it is more than the number."""


@dataclass
class EngineSettings:
    """Plain and mutable because OmegaConf builds its schema from it; treated as read-only everywhere else.

    ``command`` and ``env`` may hold the placeholders ``{python}``, ``{model}``, ``{port}``, ``{context}``,
    ``{threads}``, ``{binary}``, ``{host}``, ``{state}``, and ``{name}`` for each entry of ``options``, so that a
    number in a command has a name of its own: ``engine.options.decode_ms=5``. ``{name:words}``, alone in its place,
    stands for as many words as a shell would make of it, none of an empty one: ``options.flags="--swa-full -v"``.
    """

    name: str
    """Short name: run folders, records."""
    label: str
    """Name in reports."""
    dialect: str
    """A module of ``engines/dialects``."""
    forcing: str
    """``field`` (the server takes ``forced_tokens``), ``shim`` (LD_PRELOAD), ``hook`` (Python import hook),
    ``trace_replay`` (vLLM's own), ``one_token`` (a request a token, the last resort) or ``none``."""
    launch: str = "process"
    """``process`` starts ``command``; ``container`` runs it in one; ``attach`` uses the server at ``url``."""
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
    cache_block_tokens: int = 1
    """Its prompt cache keeps whole blocks of so many tokens, so that a turn may prefill up to a block of old ones."""
    served_model: str | None = None
    """The name of the model in requests, for dialects that give one; None asks the server at ``/v1/models``."""
    container: ContainerSettings = field(default_factory=ContainerSettings)
    state: str = "cold"
    """What the engine may have learnt before this run: ``cold`` gives it an empty folder ``{state}`` of its own,
    ``warm:FOLDER`` a copy of a folder that was prepared on development sessions."""
    needs_gpu: bool = False
    """It is of no use without an NVIDIA GPU."""
    capacity: CapacitySettings = field(default_factory=CapacitySettings)
    note: str = ""
    """Said under the tables of every report that shows this engine."""


def as_launched(settings: EngineSettings) -> EngineSettings:
    """What holds for the launch that was chosen: in its container an engine may be another server."""
    inside = settings.container
    if settings.launch != "container":
        return settings
    return replace(
        settings,
        dialect=inside.dialect or settings.dialect,
        forcing=inside.forcing or settings.forcing,
        note=settings.note if inside.note is None else inside.note,
    )
