"""From options to an engine that can serve: load, see what memory is left, place the experts, capture the step."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from engines.ostinato import calibrated, lean, lean_decode, placing
from engines.ostinato.background import Background
from engines.ostinato.capacity import hold, room_bytes
from engines.ostinato.devices import devices as named_devices
from engines.ostinato.engine import CHUNK, GPU_CHUNK, Engine
from engines.ostinato.errors import SetupError
from engines.ostinato.experts import per_token
from engines.ostinato.forward import OwnKv, choose
from engines.ostinato.grouping import empty_groups, fill
from engines.ostinato.lean_layer import Lean
from engines.ostinato.load_progress import Loading, amount
from engines.ostinato.loading import load_model
from engines.ostinato.planner import residency as residencies
from engines.ostinato.planner import routes
from engines.ostinato.resizing import resizing_of
from engines.ostinato.spare import Spare
from engines.ostinato.vocabulary import Vocabulary, end_ids, vocabulary_path
from engines.ostinato.warming import warm


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says."""

    model: Path
    context: int | None = None
    device: str = "auto"
    """One, or several by commas; ``auto``: all visible GPUs, else the CPU."""
    dtype: str = "auto"
    threads: int | None = None
    vram_budget: int | None = None
    """Bytes of each GPU that the engine may use; None takes all that is free."""
    placement: str = "ostinato"
    residency: Path | None = None
    """A plan; without one the policy chooses from ``routes``, or evenly."""
    routes: Path | None = None
    calibration: Path | None = None
    slots: int | None = None
    """Resident experts; None takes what fits (none on a CPU, where they would be a second copy)."""
    chunk: int | None = None
    """Most tokens of a forward pass; None takes 2,048, on a GPU 8,192: there each pass uploads most experts."""
    graph: bool = True
    compiled: str = "decode"
    """Passes whose dense operators ``torch.compile`` fuses: ``none``, ``decode``, ``all``. The first start compiles,
    later ones take the code from a folder."""
    lean: str = "on"
    """Whether single tokens go through decoder layers in a few kernels of their own where a layer is found to be of
    their kind: ``on``, ``off``, ``pdl`` (a kernel may start before the one ahead of it has ended)."""
    most_output: int = 32768


def open_engine(options: Options, say: Callable[[str], None] = lambda _text: None) -> Engine:
    """Build the engine.

    Args:
        say: takes a line about each step that takes long.

    Raises:
        SetupError: what the user can correct.
    """
    devices = named_devices(options.device)
    on_gpu = devices[0].type == "cuda"
    if on_gpu:
        torch.cuda.set_device(devices[0])  # page-locking would otherwise wake the first GPU, needed or not
    plan = residencies.read(options.residency) if options.residency is not None else None
    counts = routes.read_counts(options.routes) if options.routes is not None else None
    calibration = calibrated.read(options.calibration, options.model) if options.calibration else None
    blocks = placing.spread(options.model, devices, options.vram_budget, options.context, plan)
    say("loading the weights")
    loaded = load_model(options.model, device=devices[0], dtype=options.dtype, blocks=blocks, progress=Loading(say))
    placing.refuse_others(loaded, plan, counts)
    config = loaded.model.config
    limit = config.max_position_embeddings
    if options.context is not None and options.context > limit:
        raise SetupError(f"--context {options.context} exceeds the model's {limit} tokens; lower it")
    context = options.context or limit
    if on_gpu:
        nbytes, began = sum(part.store.nbytes for part in loaded.parts), perf_counter()
        say(f"page-locking {nbytes / 2**30:.1f} GiB of experts")
        for part in loaded.parts:
            part.store.pin()
        say(amount("page-locked", nbytes, perf_counter() - began))
        lean.install(loaded.model)
    groups = empty_groups(
        loaded, options.placement, calibration, options.threads, stages_uploads=on_gpu or bool(options.slots)
    )
    forward = choose(loaded.model, loaded.stages, context)
    if on_gpu and options.lean != "off" and isinstance(forward, OwnKv):
        layers = lean_decode.install(forward, Lean(pdl=options.lean == "pdl"))
        say(f"{layers} of {sum(part.store.layers for part in loaded.parts)} MoE layers decode in few kernels")
    for group in groups:
        if group.staging is not None:
            group.shares.rates = calibrated.choose_rates(group, group.policy.calibration, say)
    if options.slots is not None or not on_gpu:
        rooms = placing.room_of(options.slots or 0, loaded, plan)
    else:
        say("measuring how many experts fit beside the largest pass")
        rooms = room_bytes(
            devices, forward, chunk=options.chunk or GPU_CHUNK, context=context, vram_budget=options.vram_budget
        )
    fill(groups, loaded, rooms, plan, counts)
    resizing = resizing_of(groups, forward, context=context, per_token=per_token(config))
    resident = sum(int(group.pool.resident_LE.sum()) for group in groups)
    say(f"{resident} of {sum(group.pool.slot_LE.size for group in groups)} experts are resident")
    for group in groups:
        group.shares.path = "auto"
    spares = {group.pool.device: Spare(group.pool.device) for group in groups if on_gpu}
    backgrounds = [
        Background(group, group.policy, borrow=group.policy.borrow, spare=spares.pop(group.pool.device, None))
        for group in groups
    ]
    graph = None
    if on_gpu and options.graph and groups[0].policy.graph and isinstance(forward, OwnKv):
        from engines.ostinato.decode_graph import DecodeGraph

        say("compiling and capturing the decode step")
        for group in groups:
            warm(group, per_token(config))
        if options.compiled != "none":
            forward.compile(options.compiled)
        graph = DecodeGraph(forward, groups, backgrounds, most=min(options.most_output, context))
    if on_gpu:
        hold(devices, options.vram_budget)
    generation = loaded.model.generation_config
    eos = generation.eos_token_id if generation else None
    return Engine(
        forward,
        groups,
        Vocabulary(vocabulary_path(options.model)),
        name=getattr(config, "name", None) or options.model.resolve().name,
        vocab_size=config.vocab_size,
        context=context,
        eos_ids=end_ids(options.model) or frozenset([eos] if isinstance(eos, int) else eos or ()),
        chunk=options.chunk or (GPU_CHUNK if on_gpu else CHUNK),
        graph=graph,
        backgrounds=backgrounds,
        resizing=resizing,
    )
