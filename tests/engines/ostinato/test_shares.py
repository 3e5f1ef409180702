"""A pass's routes, and who computes its cold experts."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")

from engines.ostinato.routes_of_pass import Routes
from engines.ostinato.shares import Rates, Shares


def test_routes_are_sorted_by_expert_and_then_by_token() -> None:
    ids = np.array([[3, 1], [1, 0], [3, 2]])
    routes = Routes(ids, 5)
    assert routes.used.tolist() == [0, 1, 2, 3]
    assert routes.counts_E.tolist() == [1, 2, 1, 2, 0]
    assert routes.of(3).tolist() == [0, 4]
    chosen, starts = routes.gather(np.array([3, 1]))
    assert chosen.tolist() == [0, 4, 1, 2]
    assert starts.tolist() == [0, 2, 4]
    assert (ids.reshape(-1)[chosen] == [3, 3, 1, 1]).all()
    empty, none = routes.gather(np.zeros(0, np.int64))
    assert len(empty) == 0
    assert none.tolist() == [0]


RATES = Rates(upload_ms=1.0, cpu_tokens=(1.0, 10.0), cpu_ms=(1.0, 4.0))


def test_cpu_time_is_interpolated_and_then_proportional() -> None:
    assert RATES.cpu(np.array([1, 10, 20])).tolist() == [1.0, 4.0, 8.0]
    assert 1.0 < RATES.cpu(np.array([5]))[0] < 4.0


def test_each_path_shares_the_cold_experts_its_way() -> None:
    cold, counts = np.arange(6), np.array([1, 9, 2, 20, 1, 9])
    order = [3, 1, 5, 2, 0, 4]
    up, cpu = Shares("split", RATES).split(cold, counts, "upload")
    assert (len(up), cpu.tolist()) == (0, order)
    up, cpu = Shares("upload", RATES).split(cold, counts, "split")
    assert (up.tolist(), len(cpu)) == (order, 0)
    up, cpu = Shares("auto", RATES).split(cold, counts, "cooperative")
    assert [*up.tolist(), *cpu.tolist()] == order
    # Nobody could end earlier: moving one expert across makes the slower side slower or no faster.
    cost = [max(n * 1.0, RATES.cpu(counts[order][n:]).sum()) for n in range(7)]
    assert cost[len(up)] == min(cost)
    assert 0 < len(up) < 6
