"""The experts of decode steps, with a Python thread in the GPU's place."""

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from engines.ostinato.cpu.library import Mailbox
from engines.ostinato.cpu.torch_path import TorchCpuExperts
from engines.ostinato.expert_layout import ExpertLayout

LAYERS, EXPERTS = 2, 4
LIMIT_S = 60.0
"""Far more than any answer takes on a busy machine: a test that waits this long has failed."""


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, "no answer"
        time.sleep(0)


@pytest.fixture(params=["native", "torch"])
def kind(request) -> str:
    return request.param


@pytest.fixture
def served(kind, request, bank, gpu):
    """``served(dtype, gpus)`` → ``(experts, service, gpus, bank, tables)``."""
    ends, kept = [], []  # the memory of mailboxes and experts outlives the service that reads it

    def make(dtype: str = "bfloat16", gpus: int = 1, threads: int = 2):
        layout = ExpertLayout(256, 128, dtype, bias=True)
        held = bank(layout, LAYERS * EXPERTS)
        tables = held.addresses.reshape(LAYERS, EXPERTS).copy()
        tables[1, 3] = 0
        if kind == "native":
            opening = request.getfixturevalue("opened")(layout, threads)
            experts = opening.__enter__()
            ends.append(lambda: opening.__exit__(None, None, None))
        else:
            experts = TorchCpuExperts(layout, threads=torch.get_num_threads())
        boxes = [gpu(held) for _ in range(gpus)]
        service = experts.service(tables, [Mailbox(box.request_address, box.response_address) for box in boxes])
        ends.append(service.stop)
        kept.append((held, boxes))
        return experts, service, boxes, held, tables

    yield make
    for end in reversed(ends):
        end()


def alone(experts, tables, layer, chosen, weights, x_1D):
    out_1D = torch.empty(x_1D.shape)
    starts, tokens = np.arange(len(chosen) + 1, dtype=np.int32), np.zeros(len(chosen), np.int32)
    experts.compute(tables[layer][chosen].copy(), starts, tokens, weights, x_1D, out_1D)
    return out_1D


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16", "mxfp4"])
def test_answers_equal_compute_bit_for_bit(served, dtype) -> None:
    experts, service, (box,), held, tables = served(dtype)
    random = np.random.default_rng(0)
    service.start()
    expected = np.zeros((LAYERS, EXPERTS), np.int64)
    for sequence in range(1, 60):
        layer = sequence % 2
        chosen = random.permutation(EXPERTS - layer)[: 1 + sequence % 3].tolist()
        weights, x_1D = random.random(len(chosen), np.float32), held.x(1)
        expected[layer, chosen] += 1
        box.ask(sequence, layer, chosen, weights, x_1D)
        eventually(lambda wanted=sequence: box.sequence == wanted)
        assert box.status == 0
        assert torch.equal(box.y, alone(experts, tables, layer, chosen, weights, x_1D))
    counts = np.empty_like(expected)
    service.counts(counts)
    assert (counts == expected).all()
    service.counts(counts)
    assert not counts.any()
    stats = service.stats()
    assert (stats.jobs, stats.experts) == (59, int(expected.sum()))
    assert 0 < stats.longest_job_ns <= stats.busy_ns


def test_many_gpus_share_one_pool(served) -> None:
    experts, service, boxes, held, tables = served(gpus=3)
    service.start()
    for sequence in (1, 2, 3):
        xs = [held.x(1) for _ in boxes]
        weights = np.full(2, 0.5, np.float32)
        for i, box in enumerate(boxes):
            box.ask(sequence, 0, [i, 3], weights, xs[i])
        for i, box in enumerate(boxes):
            eventually(lambda box=box, wanted=sequence: box.sequence == wanted)
            assert torch.equal(box.y, alone(experts, tables, 0, [i, 3], weights, xs[i]))


def test_layers_and_experts_that_are_not_here_are_answered_as_such(served) -> None:
    _, service, (box,), held, _ = served()
    service.start()
    one = np.ones(1, np.float32)
    for sequence, (layer, expert) in enumerate([(LAYERS, 0), (-1, 0), (0, EXPERTS), (0, -1), (1, 3)], start=1):
        box.ask(sequence, layer, [expert], one, held.x(1))
        eventually(lambda wanted=sequence: box.sequence == wanted)
        assert box.status == 1
    box.ask(9, 0, [0], one, held.x(1))
    eventually(lambda: box.sequence == 9)
    assert box.status == 0


def test_a_stalled_pool_answers_nothing_and_recovers(served) -> None:
    _, service, (box,), held, _ = served()
    service.start()
    service.stall(True)
    one = np.ones(1, np.float32)
    box.ask(1, 0, [0], one, held.x(1))
    time.sleep(0.05)
    assert box.sequence == 0
    box.ask(2, 0, [1], one, held.x(1))
    service.stall(False)
    eventually(lambda: box.sequence == 2)
    counts = np.empty((LAYERS, EXPERTS), np.int64)
    eventually(lambda: service.stats().jobs == 1)
    service.counts(counts)
    assert counts[0].tolist() == [0, 1, 0, 0]


def test_a_parked_pool_answers_nothing_and_sleeps(served) -> None:
    _, service, (box,), held, _ = served()
    service.start()
    service.park()
    one = np.ones(1, np.float32)
    box.ask(1, 0, [0], one, held.x(1))
    began, cpu = time.monotonic(), time.process_time()
    time.sleep(0.2)
    share = (time.process_time() - cpu) / (time.monotonic() - began)
    assert box.sequence == 0
    assert share < 0.5, f"{share:.2f} cores while parked"
    service.start()
    eventually(lambda: box.sequence == 1)


def test_compute_works_while_the_service_runs(served) -> None:
    experts, service, (box,), held, tables = served(threads=1)
    x_TD, routes = held.x(30), held.routes(30)
    before, after = torch.empty(30, 256), torch.empty(30, 256)
    experts.compute(routes.experts, routes.starts, routes.tokens, routes.weights, x_TD, before)
    service.start()
    one, x_1D = np.ones(1, np.float32), held.x(1)
    for sequence in range(1, 6):
        box.ask(sequence, 0, [1], one, x_1D)
        experts.compute(routes.experts, routes.starts, routes.tokens, routes.weights, x_TD, after)
        eventually(lambda wanted=sequence: box.sequence == wanted)
        assert torch.equal(before, after)
    assert torch.equal(box.y, alone(experts, tables, 0, [1], one, x_1D))


def test_a_second_service_may_follow_the_first(bank, gpu, opened) -> None:
    layout = ExpertLayout(64, 32, "float32")
    held = bank(layout, 2)
    with opened(layout) as experts:
        for sequence in (1, 2, 3):
            box = gpu(held)
            service = experts.service(
                held.addresses.reshape(1, 2), [Mailbox(box.request_address, box.response_address)]
            )
            service.start()
            box.ask(sequence, 0, [1], np.ones(1, np.float32), held.x(1))
            eventually(lambda box=box, wanted=sequence: box.sequence == wanted)
            service.stop()
