"""Spreads a model's layers over GPUs: consecutive ones each, so that a token passes to the next GPU only once."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from engines.ostinato.errors import SetupError
from engines.ostinato.planner.model_shape import ModelShape

# Shapes: L = MoE layers.

_DIGITS = 6
"""Of a share: smaller differences are none, so that equal GPUs get equally many layers."""


def blocks(shape: ModelShape, budgets: Sequence[int], context: int) -> list[range]:
    """The MoE layers of each GPU: those with which the GPU that has least room for its experts has most.

    Room is what the dense weights and the KV cache of its layers leave of a GPU's budget; the embeddings lie on the
    first GPU and the output head on the last. A dense layer goes with the MoE layer before it, or is the first GPU's.

    Args:
        budgets: bytes of each GPU.
        context: tokens of the longest request.

    Raises:
        SetupError: more GPUs than layers.
    """
    count, gpus = len(shape.moe_layers), len(budgets)
    if gpus > count:
        raise SetupError(f"{gpus} devices for {count} layers with experts; name fewer")
    bounds = [0, *shape.moe_layers[1:], shape.layers]
    fixed = [sum(shape.dense_bytes[a:b]) + context * sum(shape.kv_bytes_per_token[a:b]) for a, b in pairwise(bounds)]
    fixed_to, experts_to = (list(accumulate(sizes, initial=0)) for sizes in (fixed, _layer_bytes(shape)))

    def share(gpu: int, first: int, last: int) -> float:
        """How much of the experts of some layers a GPU could hold, at most 1; below 0: not even the rest fits."""
        ends = shape.other_bytes // 2 * ((gpu == 0) + (gpu == gpus - 1))
        room = budgets[gpu] - ends - (fixed_to[last] - fixed_to[first])
        return round(min(1.0, room / (experts_to[last] - experts_to[first])), _DIGITS)

    # best[last]: of the layers before it on the GPUs so far, (smallest share, evenness, bounds)
    best: dict[int, tuple[float, int, tuple[int, ...]]] = {0: (1.0, 0, (0,))}
    for gpu in range(gpus):
        best = {
            last: max(
                (min(least, share(gpu, first, last)), even - (last - first) ** 2, (*cuts, last))
                for first, (least, even, cuts) in best.items()
                if first < last
            )
            for last in range(gpu + 1, count - (gpus - gpu - 1) + 1)
        }
    return [range(first, last) for first, last in pairwise(best[count][2])]


def _layer_bytes(shape: ModelShape) -> list[int]:
    return [shape.experts * size for size in shape.expert_bytes]
