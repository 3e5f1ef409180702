"""Decode without a captured step borrows too: experts move while it runs, and what it computes stays the same."""

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")

import families

from engines.ostinato.assembly import Options, open_engine
from engines.ostinato.engine import Engine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return families.make("qwen3_moe", tmp_path_factory.mktemp("borrowed"))


def opened(model: Path, placement: str) -> Engine:
    return open_engine(Options(model=model, context=512, threads=1, slots=4, placement=placement))


PROMPT, STEPS = [(37 * i) % 4000 for i in range(40)], 120


@pytest.mark.parametrize("placement", ["ostinato", "decay_cache"])
def test_the_choices_are_those_of_a_placement_that_stays(model: Path, placement: str) -> None:
    still, moving = opened(model, "ostinato:borrow=false"), opened(model, placement)
    forced = [(53 * i) % 4000 for i in range(STEPS)]
    choices = []
    for engine in (still, moving):
        engine.prefill(PROMPT)
        choices.append(list(engine.decode(5, STEPS, forced)))
    assert choices[0] == choices[1]
    assert still.background is not None
    assert moving.background is not None
    assert still.background.swaps_done == 0
    assert moving.background.swaps_done > 0
    if placement == "ostinato":
        assert moving.timings()["borrowed_hits_n"] > 50
        assert moving.timings()["cpu_experts_n"] < still.timings()["cpu_experts_n"]


def test_a_prefill_takes_its_buffers_back(model: Path) -> None:
    engine = opened(model, "ostinato")
    engine.prefill(PROMPT)
    list(engine.decode(5, STEPS, None))
    pool = engine.experts.pool
    assert any(pool.owner(slot) is not None for slot in pool.lent)
    engine.prefill([*PROMPT[:20], 7])
    assert all(pool.owner(slot) is None for slot in pool.lent)
