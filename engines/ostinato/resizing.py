"""Memory that moves between expert slots and the KV cache while no request holds any: paging's split, applied.

The pool has a slot for every expert that fits beside the KV cache of the whole context, which is the floor that
admits a request (placement/kv_split.py). What the KV cache gets beyond that is taken from slots, which are shut: no
address changes, so a captured step stays as it was captured. On a GPU the KV cache itself keeps the context's room,
whose addresses and stride a captured step holds: blocks beyond the floor are the memory of the shut slots, set aside,
and one session can't use them. On a CPU the KV buffers are really as large as their blocks.

With one session the marginal-value rule has a corner for its answer: a block beyond what the session will hold saves
nothing, a slot saves misses until a layer has one for each expert. So KV keeps its peak and the headroom, experts the
rest.
"""

from collections.abc import Sequence

from engines.ostinato.errors import SetupError
from engines.ostinato.experts import Experts
from engines.ostinato.forward import OwnKv, TransformersKv
from engines.ostinato.lru import Lru
from engines.ostinato.placement.kv_split import SplitBudget
from engines.ostinato.placement.paging import Paging

BLOCK_TOKENS = 16
"""Of a KV block, as in vLLM, where WiSP's split was made for."""


class Resizing:
    """Keeps slots and KV cache at a policy's split.

    Args:
        per_token: experts of a token: fewer slots a layer can't decode, whatever a controller wants.

    Raises:
        SetupError: the split leaves no slot, or lies below the floor.
    """

    def __init__(self, policy: Paging, lru: Lru, forward: OwnKv, *, context: int, per_token: int) -> None:
        self._lru, self._forward, self._least = lru, forward, per_token
        store = lru.pool.store
        most = min(scope.stop - scope.start for scope in lru.scopes)
        cap_bytes = store.layers * store.layout.nbytes
        block_bytes = BLOCK_TOKENS * forward.token_bytes
        floor = -(-context // BLOCK_TOKENS)
        self.budget = SplitBudget(
            bytes=most * cap_bytes + floor * block_bytes,
            cap_bytes=cap_bytes,
            block_bytes=block_bytes,
            block_tokens=BLOCK_TOKENS,
            context=context,
            experts=store.experts,
        )
        self._controller = policy.controller(self.budget)
        self.moves = 0
        """Barriers at which the boundary moved."""
        self.now = policy.split(self.budget)
        self._apply(held=0)

    def at_barrier(self, *, peak_tokens: int, held: int) -> None:
        """Between two requests.

        Args:
            peak_tokens: most tokens held at once since the last barrier.
            held: tokens that the next request keeps.
        """
        if self._controller is None:
            return
        wanted = self._controller.resize(self.now, -(-peak_tokens // BLOCK_TOKENS))
        if wanted != self.now and wanted.caps >= self._least:
            self.now = wanted
            self.moves += 1
            self._apply(held)

    def timings(self) -> dict[str, int]:
        """For an answer's timings."""
        return {"slots_a_layer_n": self.now.caps, "kv_blocks_n": self.now.blocks, "resizes_n": self.moves}

    def _apply(self, held: int) -> None:
        self._lru.limit(self.now.caps)
        self._forward.resize(self.now.blocks * BLOCK_TOKENS, held)


def resizing_of(
    groups: Sequence[Experts], forward: OwnKv | TransformersKv, *, context: int, per_token: int
) -> Resizing | None:
    """None where nothing is to be split: the policy is another, or it gives experts all that the floor leaves.

    Raises:
        SetupError: what ``Resizing`` raises; several GPUs or expert sizes; a model whose KV cache is not the engine's
            own.
    """
    policy, lru = groups[0].policy, groups[0].lru
    if not isinstance(policy, Paging) or lru is None or (policy.kv_split == "mv_wsa" and not policy.online):
        return None
    setting = f"--placement paging:kv_split={policy.kv_split},online={str(policy.online).lower()}"
    if len(groups) > 1:
        raise SetupError(f"{setting} splits one GPU between slots of one size and keys and values; name one --device")
    if not isinstance(forward, OwnKv):
        raise SetupError(
            f"{setting} divides keys and values of plain attention, which this model does not have; leave both "
            "settings out"
        )
    return Resizing(policy, lru, forward, context=context, per_token=per_token)
