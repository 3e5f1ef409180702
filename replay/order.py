"""In which order sessions and engines take their turn."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from engines.base import EngineError
from workloads.session import Session

ENGINE_ORDERS = ("given", "shuffled", "interleaved")
SESSION_ORDERS = ("given", "shuffled")
T = TypeVar("T")


@dataclass
class OrderSettings:
    """Plain and mutable because OmegaConf builds its schema from it; treated as read-only everywhere else."""

    sessions: str = "given"
    """``given`` by the workload, or ``shuffled``: alike on every engine, another way each repeat."""
    engines: str = "given"
    """Of a sweep's runs: ``given``; ``shuffled`` within each repeat; ``interleaved``: A B, then B A."""
    seed: int = 0
    """Of both shuffles."""


def check(order: OrderSettings) -> None:
    """Raises EngineError when an order is not known."""
    for name, known in (("sessions", SESSION_ORDERS), ("engines", ENGINE_ORDERS)):
        value = getattr(order, name)
        if value not in known:
            raise EngineError(f"order.{name}={value} is not known; set one of {', '.join(known)}")


def ordered_sessions(sessions: Sequence[Session], order: OrderSettings, *, repeat: int) -> tuple[Session, ...]:
    """The sessions in the order of their replay; the same for every engine of a repeat."""
    found = list(sessions)
    if order.sessions == "shuffled":
        random.Random(f"sessions {order.seed} {repeat}").shuffle(found)
    return tuple(found)


def ordered_runs(runs: Sequence[T], repeats: Sequence[int], order: OrderSettings) -> list[T]:
    """A sweep's runs in the order they are started in.

    Any order but the given one takes the repeats one after another, so that what drifts with time (heat, other
    programs) reaches all engines alike. Interleaved turns every other repeat round: A B, B A, A B (a reversal design:
    a linear drift cancels over each two repeats).

    Args:
        repeats: the repeat that each run belongs to.
    """
    if order.engines == "given":
        return list(runs)
    blocks: dict[int, list[T]] = {}
    for run, repeat in zip(runs, repeats, strict=True):
        blocks.setdefault(repeat, []).append(run)
    for number, (repeat, block) in enumerate(blocks.items()):
        if order.engines == "shuffled":
            random.Random(f"engines {order.seed} {repeat}").shuffle(block)
        elif number % 2:
            block.reverse()
    return [run for block in blocks.values() for run in block]
