"""Writes random mixture-of-experts models of any shape: the same weights as safetensors and as GGUF.

Architecture: Qwen3-MoE. A row of the router is scaled by a log-normal factor, so that some experts win far more often
than others, as in trained models. A spread of 0.45 sends 84 to 88 % of the routes to 44 % of the experts when a token
takes 8 of 128, and about 72 % when it takes 4 of 32.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engines.base import EngineError
from engines.synthetic_draw import Weight, draw, to_float32
from engines.synthetic_files import SHARD_BYTES, Place, lay_out_gguf, lay_out_safetensors
from engines.synthetic_tokenizer import Tokenizer, read_tokenizer

# A few output rows are longer than others, as in trained models: the best logit stands out, and engines that round
# differently still agree on it.
_HEAD_SPREAD = 0.3
# Norm weights near one, so that an engine which swaps two of them is found out.
_NORM_SCALE = 0.1


@dataclass
class SyntheticMoe:
    """A model's shape. Plain and mutable because OmegaConf builds its schema from it."""

    layers: int = 4
    experts: int = 32
    experts_per_token: int = 4
    hidden: int = 256
    expert_width: int = 128
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 64
    vocab_size: int = 4096
    context: int = 32768
    router_spread: float = 0.45
    """Standard deviation of the logarithm of the router's row norms; 0 routes evenly."""
    seed: int = 0
    rope_theta: float = 1e6


def write(
    spec: SyntheticMoe,
    *,
    tokenizer: Path,
    safetensors: Path | None,
    gguf: Path | None,
    progress: Callable[[float], None] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write the model as a Hugging Face folder, as a GGUF file, or both with identical weights.

    Memory stays below 1 GB (60 GB of weights took 0.43). Files appear under their names only when complete. What an
    earlier call wrote is replaced.

    Args:
        tokenizer: a Hugging Face tokenizer folder (byte-level BPE); its files are copied or embedded.
        progress: called with the share done, 0 to 1, from this thread.
        shard_bytes: largest safetensors file; a larger model gets several and an index.

    Raises:
        EngineError: a shape that can't be, an unusable tokenizer, a folder that holds something else, a full disk.
    """
    check(spec)
    vocabulary = read_tokenizer(tokenizer)
    if max(vocabulary.tokens) >= spec.vocab_size:
        raise EngineError(
            f"vocab_size {spec.vocab_size} is too small for {tokenizer}, "
            f"whose ids go to {max(vocabulary.tokens)}; set it to at least {max(vocabulary.tokens) + 1}"
        )
    weights = list(weights_of(spec))
    config = config_of(spec, vocabulary)
    size = 2 * sum(weight.size for weight in weights)
    with ExitStack() as stack:
        layouts: list[dict[str, Place]] = []
        if safetensors is not None:
            folder = stack.enter_context(_appearing(safetensors, size, folder=True))
            layouts.append(lay_out_safetensors(folder, weights, config, tokenizer, shard_bytes))
        if gguf is not None:
            file = stack.enter_context(_appearing(gguf, size, folder=False))
            layouts.append(lay_out_gguf(file, weights, config, vocabulary))
        _fill(weights, layouts, spec.seed, progress or (lambda _share: None))


def check(spec: SyntheticMoe) -> None:
    """Refuse a shape that can't be.

    Raises:
        EngineError: names the field and a good value.
    """
    for name, value in asdict(spec).items():
        if name not in ("seed", "router_spread") and not value > 0:
            raise EngineError(f"{name} must be positive, not {value}")
    if spec.seed < 0 or spec.router_spread < 0:
        raise EngineError("seed and router_spread must be 0 or more")
    if spec.experts_per_token > spec.experts:
        raise EngineError(f"experts_per_token {spec.experts_per_token} exceeds experts {spec.experts}")
    if spec.heads % spec.kv_heads:
        raise EngineError(f"heads {spec.heads} is no multiple of kv_heads {spec.kv_heads}")
    if spec.head_dim % 2:
        raise EngineError(f"head_dim {spec.head_dim} is odd; rotary embeddings need pairs")


def weights_of(spec: SyntheticMoe) -> Iterator[Weight]:
    """Every tensor in file order, under both of its names. Scaled by fan-in, so activations keep unit variance."""
    H, W = spec.hidden, spec.expert_width
    q, kv = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim

    def norm(name: str, size: int, gguf_name: str) -> Weight:
        return Weight(name=name, shape=(size,), scale=_NORM_SCALE, mean=1.0, gguf_name=gguf_name)

    def matrix(name: str, rows: int, columns: int, gguf_name: str, part: int = 0, row_spread: float = 0.0) -> Weight:
        return Weight(
            name=name,
            shape=(rows, columns),
            scale=columns**-0.5,
            row_spread=row_spread,
            gguf_name=gguf_name,
            gguf_part=part,
        )

    yield Weight(
        name="model.embed_tokens.weight", shape=(spec.vocab_size, H), scale=1.0, gguf_name="token_embd.weight"
    )
    for layer in range(spec.layers):
        a, b = f"model.layers.{layer}.", f"blk.{layer}."
        yield norm(a + "input_layernorm.weight", H, b + "attn_norm.weight")
        yield matrix(a + "self_attn.q_proj.weight", q, H, b + "attn_q.weight")
        yield matrix(a + "self_attn.k_proj.weight", kv, H, b + "attn_k.weight")
        yield matrix(a + "self_attn.v_proj.weight", kv, H, b + "attn_v.weight")
        yield matrix(a + "self_attn.o_proj.weight", H, q, b + "attn_output.weight")
        yield norm(a + "self_attn.q_norm.weight", spec.head_dim, b + "attn_q_norm.weight")
        yield norm(a + "self_attn.k_norm.weight", spec.head_dim, b + "attn_k_norm.weight")
        yield norm(a + "post_attention_layernorm.weight", H, b + "ffn_norm.weight")
        yield matrix(a + "mlp.gate.weight", spec.experts, H, b + "ffn_gate_inp.weight", 0, spec.router_spread)
        for expert in range(spec.experts):
            c = f"{a}mlp.experts.{expert}."
            yield matrix(c + "gate_proj.weight", W, H, b + "ffn_gate_exps.weight", expert)
            yield matrix(c + "up_proj.weight", W, H, b + "ffn_up_exps.weight", expert)
            yield matrix(c + "down_proj.weight", H, W, b + "ffn_down_exps.weight", expert)
    yield norm("model.norm.weight", H, "output_norm.weight")
    yield matrix("lm_head.weight", spec.vocab_size, H, "output.weight", 0, _HEAD_SPREAD)


def config_of(spec: SyntheticMoe, tokenizer: Tokenizer) -> dict[str, Any]:
    """``config.json``; ``synthetic_moe`` tells where the weights come from."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "name": f"synthetic-moe-{spec.layers}x{spec.experts}-seed{spec.seed}",
        "synthetic_moe": asdict(spec),
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",  # the same for readers older than transformers 5
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden,
        "intermediate_size": spec.expert_width * spec.experts_per_token,
        "moe_intermediate_size": spec.expert_width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "num_experts": spec.experts,
        "num_experts_per_tok": spec.experts_per_token,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "rope_theta": spec.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": spec.rope_theta},
        "max_position_embeddings": spec.context,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.pad_id,
    }


def _fill(
    weights: Sequence[Weight],
    layouts: Sequence[Mapping[str, Place]],
    seed: int,
    progress: Callable[[float], None],
) -> None:
    """Draw each block once and write it to its place in every file, on all cores (numpy draws without the GIL)."""
    with ExitStack() as stack:
        paths = {place.path for layout in layouts for place in layout.values()}
        fds = {path: stack.enter_context(path.open("r+b")).fileno() for path in paths}

        def block(job: tuple[Weight, int]) -> int:
            weight, start = job
            values = draw(weight, start, seed)
            for layout in layouts:
                place = layout[weight.name]
                content = to_float32(values) if place.wide else values
                _write_at(fds[place.path], content.tobytes(), place.offset + start * content.itemsize)
            return len(values)

        jobs = [(weight, start) for weight in weights for start in weight.blocks]
        total = sum(weight.size for weight in weights)
        done = 0
        pool = stack.enter_context(ThreadPoolExecutor(len(os.sched_getaffinity(0))))
        try:
            for count in pool.map(block, jobs):
                done += count
                progress(done / total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _write_at(fd: int, content: bytes, offset: int) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


@contextmanager
def _appearing(target: Path, size: int, *, folder: bool) -> Iterator[Path]:
    """A temporary path that takes the target's name when the block ends well, and vanishes when it doesn't."""
    if folder and target.is_dir() and any(target.iterdir()) and not _written_here(target):
        raise EngineError(
            f"{target} holds something other than a synthetic model; remove it or choose another folder"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(target.parent).free
    if free < size:
        raise EngineError(f"{target} needs {size / 1e9:.1f} GB but the disk has {free / 1e9:.1f} GB; free some space")
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        if folder:
            partial.mkdir()
        yield partial
        if target.is_dir():
            shutil.rmtree(target)
        partial.replace(target)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise EngineError(
            f"the disk filled up while writing {target} ({size / 1e9:.1f} GB); free some space"
        ) from error
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        else:
            partial.unlink(missing_ok=True)


def _written_here(folder: Path) -> bool:
    config = folder / "config.json"
    return config.is_file() and '"synthetic_moe"' in config.read_text(encoding="utf-8")
