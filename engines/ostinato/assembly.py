"""From options to an engine that can serve: load, see what memory is left, place the experts, capture the step."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from engines.ostinato import lean
from engines.ostinato.background import Background
from engines.ostinato.cpu.library import open_cpu_experts
from engines.ostinato.device_branch import DeviceBranch, TorchBranch
from engines.ostinato.engine import CHUNK, GPU_CHUNK, Engine
from engines.ostinato.errors import SetupError
from engines.ostinato.experts import Experts, per_token
from engines.ostinato.forward import OwnKv, TransformersKv, choose
from engines.ostinato.loading import LoadedModel, load_model
from engines.ostinato.lru import Lru
from engines.ostinato.packing import TORCH
from engines.ostinato.placement.policy import MemoryBudget, Policy
from engines.ostinato.placement.registry import policy as named_policy
from engines.ostinato.planner import calibration as calibrations
from engines.ostinato.planner import residency as residencies
from engines.ostinato.planner import routes
from engines.ostinato.pool import ExpertPool
from engines.ostinato.rates import measure
from engines.ostinato.routes_of_pass import Routes
from engines.ostinato.shares import Rates, Shares
from engines.ostinato.spare import Spare
from engines.ostinato.staging import Staging
from engines.ostinato.vocabulary import Vocabulary, end_ids, vocabulary_path

MARGIN_BYTES = 512 << 20
"""Kept free at the peak of the capacity test: the driver's own and the captured step's memory."""
_STAGED = 32
"""Experts that the staging buffer holds, in two halves."""
_AHEAD = 6
"""Experts of the next layer that are uploaded before its routes are known: as many as the link carries meanwhile."""
_NO_RATES = Rates(upload_ms=1.0, cpu_tokens=(1.0,), cpu_ms=(1.0,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says."""

    model: Path
    context: int | None = None
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    vram_budget: int | None = None
    """Bytes of the GPU that the engine may use; None takes all that is free."""
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
    most_output: int = 32768


def open_engine(options: Options, say: Callable[[str], None] = lambda _text: None) -> Engine:
    """Build the engine.

    Args:
        say: takes a line about each step that takes long.

    Raises:
        SetupError: what the user can correct.
    """
    device = _device(options.device)
    say("loading the weights")
    loaded = load_model(options.model, device=device, dtype=options.dtype)
    limit = loaded.model.config.max_position_embeddings
    if options.context is not None and options.context > limit:
        raise SetupError(f"--context {options.context} exceeds the model's {limit} tokens; lower it")
    context = options.context or limit
    calibration = calibrations.read(options.calibration) if options.calibration else None
    policy = named_policy(options.placement, calibration=calibration)
    on_gpu = device.type == "cuda"
    if on_gpu:
        say(f"page-locking {loaded.store.nbytes / 2**30:.1f} GiB of experts")
        loaded.store.pin()
        lean.install(loaded.model)
    cpu = open_cpu_experts(loaded.store.layout, options.threads or _threads(on_gpu=on_gpu))
    branch = _branch(loaded, on_gpu=on_gpu)
    shares = Shares("upload", _NO_RATES)
    staged = min(_STAGED, 2 * loaded.store.experts)
    ahead = _AHEAD if on_gpu else 0
    staging = Staging(loaded.store, device, staged, ahead) if on_gpu or options.slots else None
    experts = Experts(ExpertPool(loaded.store, device, 0), branch, cpu, shares, staging, policy)
    experts.install(loaded.experts)
    forward = choose(loaded.model, device, context)
    if staging is not None:
        shares.rates = measure(experts)
    free = _room(options, experts, forward, context) if on_gpu and options.slots is None else 0
    slots = free if options.slots is None else options.slots
    pool = ExpertPool(
        loaded.store,
        device,
        min(slots, loaded.store.layers * loaded.store.experts),
        lent=staging.blocks if staging is not None and policy.borrow else None,
        cold_LE=loaded.store.addresses if policy.miss == "stream" else None,
    )
    counts = routes.read_counts(options.routes) if options.routes is not None else None
    pool.fill(_residents(options, policy, pool, loaded, counts))
    if counts is not None:
        experts.early_L = _early(pool, counts)
    experts.pool = pool
    if policy.miss == "fetch":
        experts.lru = Lru(pool, per_layer=policy.lru_scope == "layer")
        needed = per_token(loaded.model.config)
        if not all(experts.lru.fits(layer, needed) for layer in range(loaded.store.layers)):
            raise SetupError(
                f"--placement {policy.name} brings all {needed} experts of a token into slots, of which a layer has "
                f"too few ({pool.slots} in all); raise --vram-budget or --slots"
            )
    spare = Spare(device, loaded.store.layout.nbytes) if on_gpu else None
    background = Background(experts, policy, borrow=policy.borrow, spare=spare)
    say(f"{int(pool.resident_LE.sum())} of {pool.slot_LE.size} experts are resident")
    shares.path = "auto"
    graph = None
    if on_gpu and options.graph and policy.graph and isinstance(forward, OwnKv):
        from engines.ostinato.decode_graph import DecodeGraph

        say("compiling and capturing the decode step")
        _warm(experts, per_token(loaded.model.config))
        if options.compiled != "none":
            forward.compile(options.compiled)
        graph = DecodeGraph(forward, experts, background, most=min(options.most_output, context))
    generation = loaded.model.generation_config
    eos = generation.eos_token_id if generation else None
    return Engine(
        forward,
        experts,
        Vocabulary(vocabulary_path(options.model)),
        name=getattr(loaded.model.config, "name", None) or options.model.resolve().name,
        vocab_size=loaded.model.config.vocab_size,
        context=context,
        eos_ids=end_ids(options.model) or frozenset([eos] if isinstance(eos, int) else eos or ()),
        chunk=options.chunk or (GPU_CHUNK if on_gpu else CHUNK),
        graph=graph,
        background=background,
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise SetupError(f"--device {name}: PyTorch finds no CUDA device here; leave --device out")
    try:
        return torch.device(name, 0) if name == "cuda" else torch.device(name)
    except RuntimeError as error:
        raise SetupError(f"--device {name} is no device; use auto, cpu, cuda or cuda:N") from error


def _threads(*, on_gpu: bool) -> int:
    import os

    cores = len(os.sched_getaffinity(0))
    return max(1, cores - 1) if on_gpu else cores  # with a GPU one core feeds it and streams the tokens


def _branch(loaded: LoadedModel, *, on_gpu: bool) -> DeviceBranch:
    if not on_gpu:
        return TorchBranch(loaded.store.layout)
    from engines.ostinato.gpu_branch import TritonBranch

    return TritonBranch(loaded.store.layout)


def _room(options: Options, experts: Experts, forward: OwnKv | TransformersKv, context: int) -> int:
    """How many experts fit beside the largest forward pass at the end of the context (the capacity test)."""
    device = experts.pool.device
    torch.cuda.reset_peak_memory_stats(device)
    size = min(options.chunk or GPU_CHUNK, context)
    forward.logits(np.arange(size).tolist(), context - size if isinstance(forward, OwnKv) else 0)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device)
    free, total = torch.cuda.mem_get_info(device)
    driver = max(0, total - free - torch.cuda.memory_reserved(device))
    budget = min(options.vram_budget or total, free + torch.cuda.memory_reserved(device) + driver)
    left = budget - peak - min(driver, 1 << 30) - MARGIN_BYTES
    if left < 0:
        raise SetupError(
            f"the GPU needs {(peak + driver + MARGIN_BYTES) / 2**30:.2f} GiB before any expert but may use "
            f"{budget / 2**30:.2f}; raise --vram-budget or lower --context or --chunk"
        )
    return int(left // experts.pool.store.layout.nbytes)


def _warm(experts: Experts, per_token: int) -> None:
    """Compile the kernels of passes of every size, so that no request waits for it."""
    pool, branch, staging = experts.pool, experts.branch, experts.staging
    assert staging is not None
    layout, K = pool.store.layout, per_token
    kind = TORCH.get(layout.dtype, torch.bfloat16)
    for block in (16, 32, 64, 128):
        tokens = -(-block // K)
        x_TD = torch.zeros(tokens, layout.hidden, dtype=kind, device=pool.device)
        ids_TK = torch.zeros(tokens, K, dtype=torch.int64, device=pool.device)
        routes_of_pass = Routes(np.zeros((tokens, K), np.int64), pool.store.experts)
        for cpu_TD in (None, torch.zeros(tokens, layout.hidden, device=pool.device)):
            the_pass = branch.begin(x_TD, ids_TK, ids_TK.to(kind), routes_of_pass)
            the_pass.run(np.zeros(1, np.int64), np.array([staging.blocks.data_ptr()], np.int64))
            the_pass.join(cpu_TD)


def _early(pool: ExpertPool, counts: routes.RouteCounts) -> list[np.ndarray]:
    """Each layer's cold experts by the routes of recorded prefills."""
    shares_LE = np.where(pool.resident_LE, -1.0, counts.prefill_shares_LE)
    return [order[row[order] > 0] for row in shares_LE for order in [np.argsort(-row, kind="stable")]]


def _residents(
    options: Options, policy: Policy, pool: ExpertPool, loaded: LoadedModel, counts: routes.RouteCounts | None
) -> list[tuple[int, int]]:
    store = loaded.store
    if options.residency is not None:
        plan = residencies.read(options.residency)
        named = [expert for part in plan.pools for expert in (*part.resident, *part.reserve)]
        if plan.layers != store.layers or plan.experts != store.experts:
            raise SetupError(
                f"{options.residency} is a plan for {plan.layers} x {plan.experts} experts, the model has "
                f"{store.layers} x {store.experts}; plan it again"
            )
        return named[: pool.slots]
    budget = MemoryBudget(
        layers=range(store.layers),
        experts=store.experts,
        experts_per_token=per_token(loaded.model.config),
        expert_bytes=(store.layout.nbytes,) * store.layers,
        pool_bytes=pool.slots * store.layout.nbytes,
    )
    resident_LE = policy.residents(budget, counts)
    return [(int(layer), int(expert)) for layer, expert in np.argwhere(resident_LE)][: pool.slots]
