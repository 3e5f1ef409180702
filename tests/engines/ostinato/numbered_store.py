"""A small store in which every byte of an expert says which one it is, and what must hold of a pool over it."""

import torch

from engines.ostinato.expert_layout import ExpertLayout
from engines.ostinato.pool import ExpertPool
from engines.ostinato.store import ExpertStore

CPU = torch.device("cpu")
LAYERS, EXPERTS = 3, 8


def numbered_store() -> ExpertStore:
    """Every byte of an expert says which one it is."""
    made = ExpertStore(ExpertLayout(32, 16, "float32"), layers=LAYERS, experts=EXPERTS)
    for layer in range(LAYERS):
        for expert in range(EXPERTS):
            made.bytes[layer, expert] = 10 * layer + expert
    return made


def held(pool: ExpertPool, layer: int, expert: int) -> int:
    """What lies where the table says this expert lies."""
    address = int(pool.table_LE[layer, expert])
    slot = pool.address_S.tolist().index(address)
    values = pool.block(slot).unique().tolist()
    assert len(values) == 1
    return int(values[0])


def check(pool: ExpertPool) -> None:
    """Table, slots and contents agree."""
    for layer in range(LAYERS):
        for expert in range(EXPERTS):
            slot = int(pool.slot_LE[layer, expert])
            if slot < 0:
                assert pool.table_LE[layer, expert] == 0
            else:
                assert pool.owner(slot) == (layer, expert)
                assert held(pool, layer, expert) == 10 * layer + expert
