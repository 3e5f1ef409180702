"""How soon routes come back to an expert: what caches of every size would miss, from one pass over a trace."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.planner.routes import RouteTrace

# Shapes: N = decode steps, L = MoE layers, E = experts, K = experts per token.

NEVER = np.iinfo(np.int32).max
"""The distance of a first use: no cache is large enough."""


def distances(trace: RouteTrace, layers: range, scope: Literal["gpu", "layer"]) -> NDArray[np.int32]:
    """How many other experts were used since this one was, for every route: ``[N, layers, K]``.

    A least-recently-used cache with S slots has the expert exactly if the distance is below S (Mattson et al. 1970).
    The K experts of a layer are wanted at once, so they do not push each other out.

    Args:
        scope: ``gpu`` for one cache that the layers share, ``layer`` for one each.
    """
    steps, _, k = trace.experts_NLK.shape
    count, experts = len(layers), trace.experts
    rows = 1 if scope == "gpu" else count
    wanted, items = count * k // max(rows, 1), count * experts // max(rows, 1)
    # place[x]: where item x stands, its cache's places being base, base + 1, …: the first was used last. What is used
    # moves to the front, and the others make room.
    base = np.repeat(np.arange(rows, dtype=np.int32) * items, items)
    room = np.repeat(np.arange(1, rows + 1, dtype=np.int32) * wanted, items)
    front = base[:: max(items, 1), None] + np.arange(wanted - 1, -1, -1, dtype=np.int32)
    place = np.arange(count * experts, dtype=np.int32)
    marks = np.zeros(count * experts, np.int32)
    seen = np.zeros(count * experts, bool)
    layer = np.repeat(np.arange(count), k)
    earlier = layer[:, None] < layer[None, :]
    found = np.empty((steps, count * k), np.int32)
    offset = np.arange(count, dtype=np.int64)[:, None] * experts
    for step in range(steps):
        used = (trace.experts_NLK[step, layers.start : layers.stop] + offset).ravel()
        before = place[used]
        distance = before - base[used]
        if scope == "gpu":
            # Of the layers before it in this step, those that stood behind it are in front of it by its turn.
            distance += ((before[:, None] > before) & earlier).sum(0, dtype=np.int32)
        found[step] = np.where(seen[used], distance, NEVER)
        marks[before] = 1
        place += room - marks.cumsum(dtype=np.int32)[place]
        place[used] = front.ravel()
        marks[before] = 0
        seen[used] = True
    return found.reshape(steps, count, k)


def miss_curve(found: NDArray[np.integer[Any]], slots: int) -> NDArray[np.float64]:
    """Misses per decode step of caches with 0, 1, … ``slots`` slots, from ``distances``: ``[slots + 1]``."""
    histogram = np.bincount(np.minimum(found.ravel(), slots), minlength=slots + 1)
    return np.concatenate([[found.size], found.size - np.cumsum(histogram)[:slots]]) / max(len(found), 1)
