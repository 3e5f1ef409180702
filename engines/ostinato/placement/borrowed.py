"""Borrowed memory: while sessions decode, the prefill's buffers hold the experts that the CPU keeps computing.

Ostinato, section 3.4: every CPU use raises an expert's score, which decays over decode steps; the best are copied
into free slots of the GPU that holds their layer; when the slots are full, a newcomer replaces the lowest only when
it scores clearly higher; copies join at a later token boundary; a prefill returns everything first. The paper chose
its constants offline and prints none of them: ``planner/simulate.py`` chooses ours from a recording. Here a use of a
borrowed expert raises its score as well: else it would lose its place for being there (random model, 24 layers of 128
experts, 44 slots to borrow: 0.99 cold routes a layer instead of 1.11, and a quarter of the copies).
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.ostinato.placement.policy import Swap

# Shapes: L = MoE layers, E = experts.


@dataclass(kw_only=True)
class Borrowed:
    """The borrowed slots of one GPU.

    ``after_step`` says what to copy; when a copy has arrived, ``joined`` makes it count. In between, its slot is
    taken.
    """

    layers: range
    """Of this GPU."""
    sizes: NDArray[np.int64]
    """One expert of each layer, bytes, ``[L]``."""
    experts: int
    room: int
    """Bytes that decode may borrow; may change while nothing is borrowed."""
    half_life: float = 64.0
    """Decode steps after which a use counts half."""
    threshold: float = 1.5
    """Score from which an expert is copied: it was used more than once lately."""
    margin: float = 1.5
    """A newcomer's score must be this many times the lowest one's."""
    most: int = 8
    """Copies that may be under way at once."""

    present_LE: NDArray[np.bool_] = field(init=False)
    """Borrowed experts that decode may use."""
    _coming: list[Swap] = field(init=False, default_factory=list)
    _score_LE: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        self.present_LE = np.zeros((len(self.sizes), self.experts), bool)
        self._score_LE = np.zeros(self.present_LE.shape)

    def after_step(
        self, uses_LE: NDArray[np.integer[Any]], resident_LE: NDArray[np.bool_], *, steps: int = 1
    ) -> list[Swap]:
        """The copies to start now; what they replace must not be used from the next token boundary on.

        Args:
            uses_LE: routes to each expert since the last call; those of residents do not count.
            resident_LE: who has a slot of its own.
            steps: decode steps since the last call.
        """
        self._score_LE *= 0.5 ** (steps / self.half_life)
        self._score_LE += np.where(resident_LE, 0, uses_LE)
        taken = self.present_LE.copy()
        for swap in self._coming:
            taken[swap.layer, swap.expert] = True
        swaps = best_swaps(
            self._score_LE,
            taken,
            self.layers,
            sizes=self.sizes,
            room=self.room,
            threshold=self.threshold,
            margin=self.margin,
            most=self.most - len(self._coming),
            barred_LE=resident_LE,
            kept=[(swap.layer, swap.expert) for swap in self._coming],
        )
        for swap in swaps:
            if swap.out is not None:
                self.present_LE[swap.out] = False
        self._coming += swaps
        return swaps

    def joined(self, swap: Swap) -> None:
        """A copy has arrived, and the tables that name it are in force."""
        self._coming.remove(swap)
        self.present_LE[swap.layer, swap.expert] = True

    def clear(self) -> None:
        """A prefill takes its buffers back. Copies under way must end first, and are lost."""
        self.present_LE[:] = False
        self._coming.clear()
        self._score_LE[:] = 0.0


def best_swaps(
    score_LE: NDArray[np.float64],
    held_LE: NDArray[np.bool_],
    layers: range,
    *,
    sizes: NDArray[np.int64],
    room: int,
    threshold: float,
    margin: float,
    most: int,
    barred_LE: NDArray[np.bool_] | None = None,
    kept: list[tuple[int, int]] | None = None,
) -> list[Swap]:
    """The highest-scored newcomers, each into free room or in place of the lowest-scored of its byte size.

    Args:
        score_LE: decayed uses.
        held_LE: who has a slot, or is on the way into one.
        room: bytes of all slots together.
        threshold: the score a newcomer needs.
        margin: how many times the replaced expert's score it needs.
        barred_LE: never newcomers.
        kept: never replaced.
    """
    if most <= 0 or not len(layers):
        return []
    rows = slice(layers.start, layers.stop)
    score, held = score_LE[rows], held_LE[rows]
    candidate = np.where(held, -1.0, score)
    if barred_LE is not None:
        candidate[barred_LE[rows]] = -1.0
    if candidate.max() < threshold:
        return []
    free = room - int((held.sum(1) * sizes[rows]).sum())
    loser = np.where(held, score, np.inf)
    for layer, expert in kept or []:
        loser[layer - layers.start, expert] = np.inf
    swaps: list[Swap] = []
    while len(swaps) < most:
        layer, expert = map(int, np.unravel_index(int(candidate.argmax()), candidate.shape))
        best = candidate[layer, expert]
        if best < threshold:
            break
        candidate[layer, expert] = -1.0
        size = int(sizes[layers.start + layer])
        if free >= size:
            free -= size
            swaps.append(Swap(layers.start + layer, expert, None))
            continue
        same = np.where((sizes[rows] == size)[:, None], loser, np.inf)
        out_layer, out_expert = map(int, np.unravel_index(int(same.argmin()), same.shape))
        if not np.isfinite(same[out_layer, out_expert]) or best <= margin * same[out_layer, out_expert]:
            candidate[sizes[rows] == size] = -1.0  # nobody gives way to the best of this size, so to none of it
            continue
        loser[out_layer, out_expert] = np.inf
        swaps.append(Swap(layers.start + layer, expert, (layers.start + out_layer, out_expert)))
    return swaps
