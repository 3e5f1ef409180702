"""What a placement changes at token boundaries: borrowed slots, and the swaps of policies that keep learning."""

import numpy as np

from engines.ostinato.experts import Experts
from engines.ostinato.moves import Moves
from engines.ostinato.placement.borrowed import Borrowed
from engines.ostinato.placement.policy import Policy
from engines.ostinato.spare import Spare

EVERY = 4
"""Steps between two decisions."""


class Background:
    """Asks the policy and the borrowed memory, and moves experts accordingly.

    Args:
        borrow: lend the pool's lent slots to decode.
        spare: is lent as well.
    """

    def __init__(self, experts: Experts, policy: Policy, *, borrow: bool, spare: Spare | None = None) -> None:
        pool, store = experts.pool, experts.pool.store
        self._pool, self._policy, self._spare = pool, policy, spare
        self._own = Moves(pool, range(pool.slots))
        self._lent = Moves(pool, pool.lent)
        self.borrowed: Borrowed | None = None
        if borrow and (len(pool.lent) or spare is not None):
            sizes = np.full(store.layers, store.layout.nbytes, np.int64)
            self.borrowed = Borrowed(
                layers=range(store.layers),
                sizes=sizes,
                experts=store.experts,
                room=len(pool.lent) * store.layout.nbytes,
            )
        self.borrowed_hits = 0
        """Routes to experts in lent slots since the last request began."""

    @property
    def counts_hits(self) -> bool:
        """Whether ``at_boundary`` must see the routes of resident experts too."""
        return self._policy.counts_hits

    @property
    def idle(self) -> bool:
        """Whether no boundary changes anything."""
        return self.borrowed is None and type(self._policy).after_step is Policy.after_step

    def at_boundary(self, cpu_uses_LE: np.ndarray, uses_LE: np.ndarray, steps: int) -> None:
        """Between two steps.

        Args:
            cpu_uses_LE: routes that the CPU computed since the last call.
            uses_LE: all routes since then, where they were counted.
        """
        pool = self._pool
        self._own.join()
        wanted = self._policy.after_step(
            uses_LE if self.counts_hits else cpu_uses_LE, self._taken(self._own), steps=steps
        )
        # What is still on its way into a slot can't leave it yet; a policy that means it asks again.
        swaps = [swap for swap in wanted if swap.out is None or 0 <= pool.slot_LE[swap.out] < pool.slots]
        if swaps:
            self._own.start(swaps)
        if self.borrowed is None:
            return
        if self._spare is not None and not self._spare.taken:
            pool.lend(self._spare.take())
            self._resize(self.borrowed)
        self._lent.join(self.borrowed.joined)
        lent = (pool.slot_LE >= pool.slots) & (uses_LE > 0)
        self.borrowed_hits += int(uses_LE[lent].sum())
        self._lent.start(
            self.borrowed.after_step(uses_LE, pool.resident_LE & (pool.slot_LE < pool.slots), steps=steps)
        )

    def before_prefill(self) -> None:
        """Give back what was lent."""
        self.borrowed_hits = 0
        self._own.join(wait=True)
        if self.borrowed is not None:
            self._lent.clear()
            self.borrowed.clear()
            if self._spare is not None:
                self._pool.take_back()
                self._spare.give_back()
                self._resize(self.borrowed)

    def _resize(self, borrowed: Borrowed) -> None:
        self._lent.slots = self._pool.lent
        borrowed.room = len(self._pool.lent) * self._pool.store.layout.nbytes

    def _taken(self, moves: Moves) -> np.ndarray:
        taken = self._pool.resident_LE.copy()
        for swap in moves.pending:
            taken[swap.layer, swap.expert] = True
        return taken

    @property
    def swaps_done(self) -> int:
        """Copies that arrived since the engine started."""
        return self._own.done + self._lent.done
