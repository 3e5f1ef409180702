"""Attention over kept keys and values, against a plain computation with a full mask."""

import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")

import torch
from torch import Tensor

from engines.ostinato import kv

HEADS, GROUPS, KEYS, VALUES, HELD = 6, 2, 16, 24, 300


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def plain(
    query: Tensor, key: Tensor, value: Tensor, window: int | None, sinks: Tensor | None, softcap: float | None
) -> Tensor:
    """All positions at once in float64, ``[T, H, V]``."""
    share = HEADS // GROUPS
    key, value = key.double().repeat_interleave(share, 0), value.double().repeat_interleave(share, 0)
    scores = query.double() @ key.mT * 0.25
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    t = torch.arange(HELD)
    distance = t[:, None] - t[None, :]
    seen = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
    weights = torch.where(seen, scores.exp(), 0.0)
    total = weights.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + sinks.double().exp()[:, None, None]
    return ((weights / total) @ value).transpose(0, 1)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("window", [None, 1, 32, 299, 300, 1000])
def test_passes_of_any_size_attend_to_what_they_may(
    window: int | None, with_sinks: bool, softcap: float | None
) -> None:
    draw = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(count, HELD, width, generator=draw)
        for count, width in ((HEADS, KEYS), (GROUPS, KEYS), (GROUPS, VALUES))
    )
    sinks = torch.randn(HEADS, generator=draw) if with_sinks else None
    wanted = plain(query, key, value, window, sinks, softcap)
    sequence = kv.Sequence(torch.device("cpu"), 64)
    layer = kv.LayerKv(sequence)

    def attend(start: int, end: int) -> Tensor:
        sequence.at(start)
        rows = slice(start, end)
        return layer.attend(
            query[:, rows], key[:, rows], value[:, rows], scale=0.25, window=window, sinks_H=sinks, softcap=softcap
        )

    # Chunks, single tokens, and a sequence that is cut back and goes on otherwise before it comes back.
    for start, end in ((0, 40), (40, 41), (41, 42), (42, 299), (299, 300)):
        assert torch.allclose(attend(start, end).double(), wanted[start:end], atol=2e-6)
    sequence.at(100)
    layer.attend(
        -query[:, :30], -key[:, :30], -value[:, :30], scale=0.25, window=window, sinks_H=sinks, softcap=softcap
    )
    assert torch.allclose(attend(100, 200).double(), wanted[100:200], atol=2e-6)
    assert layer.seen == 100


def test_room_grows_with_the_sequence_and_not_with_its_turns() -> None:
    sequence = kv.Sequence(torch.device("cpu"), 4096)
    layer = kv.LayerKv(sequence)
    seen = set()
    for turn in range(50):
        sequence.at(0 if turn % 2 else 500)
        states = torch.ones(1, 600, 4)
        layer.attend(states, states, states, scale=1.0, window=None, sinks_H=None, softcap=None)
        seen.add(layer.nbytes)
    assert len(seen) <= 2
    assert max(seen) <= 2 * 4 * 4 * 2400
