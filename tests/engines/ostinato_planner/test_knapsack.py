"""ATSInfer's two dynamic programs against brute force."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.ostinato.placement.knapsack import place, promote

UNHURRIED = settings(deadline=None, max_examples=40)


TIMES = st.integers(0, 20).map(float)


def times(n: int) -> st.SearchStrategy[list[float]]:
    return st.lists(TIMES, min_size=n, max_size=n)


@UNHURRIED
@given(st.data(), st.integers(1, 7), st.integers(0, 20))
def test_placement_is_the_best(data: st.DataObject, n: int, capacity: int) -> None:
    sizes = data.draw(st.lists(st.integers(1, 8), min_size=n, max_size=n))
    gains = [gain - 5 for gain in data.draw(times(n))]
    switches = data.draw(times(n))

    def value(on_gpu: tuple[bool, ...]) -> float:
        if sum(s for s, here in zip(sizes, on_gpu, strict=True) if here) > capacity:
            return -np.inf
        moved = sum(switches[i] for i in range(1, n) if on_gpu[i] != on_gpu[i - 1])
        return sum(g for g, here in zip(gains, on_gpu, strict=True) if here) - moved

    best = max(value(some) for some in product((False, True), repeat=n))
    assert value(tuple(bool(here) for here in place(sizes, gains, switches, capacity))) == best


@UNHURRIED
@given(st.data(), st.integers(1, 7))
def test_promotion_takes_the_least_time(data: st.DataObject, n: int) -> None:
    resident = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    cpu, gpu, switch, transfer = (data.draw(times(n)) for _ in range(4))

    def round_ms(runs: tuple[bool, ...]) -> float:
        """Switches and computing of the round, and what of each copy its window does not hide."""
        total = sum(gpu[i] if runs[i] else cpu[i] for i in range(n))
        total += sum(switch[i] for i in range(1, n) if runs[i] != runs[i - 1])
        copied = -1  # the last tensor that was copied
        for i in range(n):
            if resident[i] and not runs[i]:
                return np.inf
            if resident[i] or not runs[i]:
                continue
            starts = [j for j in range(copied + 1, i) if not runs[j]]
            if copied >= 0 and not starts:
                return np.inf  # the copies of a round don't overlap
            start = 0 if copied < 0 else starts[0] + 1
            window = sum(gpu[j] if runs[j] else cpu[j] for j in range(start, i))
            window += sum(switch[j] for j in range(max(start, 1), i) if runs[j] != runs[j - 1])
            total += max(transfer[i] - window, 0.0)
            copied = i
        return total

    best = min(round_ms(some) for some in product((False, True), repeat=n))
    runs = promote(np.array(resident), *(np.array(x) for x in (cpu, gpu, switch, transfer)))
    assert round_ms(tuple(bool(here) for here in runs)) == best
