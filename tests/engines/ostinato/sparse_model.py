"""A model folder of any size whose weights are all zero and take no room on a disk."""

from pathlib import Path

from engines.synthetic_files import SHARD_BYTES, lay_out_safetensors
from engines.synthetic_moe import SyntheticMoe, config_of, weights_of
from engines.synthetic_tokenizer import read_tokenizer
from workloads.sample_paths import TOKENIZER


def write(spec: SyntheticMoe, folder: Path) -> int:
    """Returns the bytes of its weights."""
    folder.mkdir(parents=True)
    weights = list(weights_of(spec))
    lay_out_safetensors(folder, weights, config_of(spec, read_tokenizer(TOKENIZER)), TOKENIZER, SHARD_BYTES)
    return 2 * sum(weight.size for weight in weights)
