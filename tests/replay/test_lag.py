"""The probe on a real loop, and which of its probes count."""

import asyncio
import time
from array import array

import pytest
import uvloop

from replay.lag import PERIOD_NS, LagProbe, Lags, united

MS = 1_000_000


def test_a_loop_that_was_held_up_shows_it_and_misses_no_probe() -> None:
    async def held_up() -> tuple[Lags, int]:
        probe = LagProbe()
        probe.start()
        await asyncio.sleep(0.05)
        time.sleep(0.15)  # noqa: ASYNC251 the fault that is looked for
        await asyncio.sleep(0.05)
        return probe.stop(), time.perf_counter_ns()

    lags, end_ns = uvloop.run(held_up())
    assert abs(len(lags.late_us) - ((end_ns - lags.first_ns) // PERIOD_NS + 1)) <= 2
    late = sorted(lags.late_us)
    assert late[-1] > 100_000  # due soon after the hold-up began
    assert sum(us > 10_000 for us in late) >= 4  # each probe that was due meanwhile is late by its own time


def test_only_probes_that_were_due_while_an_answer_was_awaited_count() -> None:
    lags = Lags(0, PERIOD_NS, array("I", range(100, 110)))
    assert lags.within([(2 * PERIOD_NS, 3 * PERIOD_NS + 5 * MS)]) == [102e-6, 103e-6]
    assert lags.within([(2 * PERIOD_NS + 1, 3 * PERIOD_NS - 1)]) == []
    assert len(lags.within([(-5 * PERIOD_NS, 99 * PERIOD_NS)])) == 10
    assert lags.within([]) == []


def test_what_delays_a_probe_after_the_answers_end_delays_no_stamp() -> None:
    lags = Lags(0, PERIOD_NS, array("I", [9000]))
    assert lags.within([(0, 2 * MS)]) == [2e-3]


@pytest.mark.parametrize(
    ("spans", "whole"),
    [
        ([(5, 9), (1, 3)], [(1, 3), (5, 9)]),
        ([(1, 6), (5, 9), (2, 3)], [(1, 9)]),
        ([(1, 5), (5, 9)], [(1, 9)]),
    ],
)
def test_answers_that_are_awaited_together_count_once(
    spans: list[tuple[int, int]], whole: list[tuple[int, int]]
) -> None:
    assert united(spans) == whole
