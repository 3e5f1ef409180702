"""What a saved calibration changes when an engine starts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")

import numpy as np
import torch

from engines.ostinato import calibrate, calibrated, decode_times
from engines.ostinato.assembly import Options, open_engine
from engines.ostinato.errors import SetupError
from engines.ostinato.planner import calibration as calibrations
from engines.ostinato.planner import model_shape
from engines.ostinato.planner.calibration import Calibration
from engines.ostinato.shares import Rates

Get = Callable[..., Any]
SOME_ON_EACH_SIDE = Rates(upload_ms=1.0, cpu_tokens=(1.0, 8.0), cpu_ms=(0.3, 2.0))


@pytest.fixture(scope="module")
def folder(tiny: Get) -> Path:
    made: Path = tiny("qwen3_moe", num_experts=16).folder
    return made


@pytest.fixture(scope="module")
def measured(folder: Path, opened: Get) -> Calibration:
    engine = opened(folder, context=64, slots=8)
    found = calibrate.measure(engine, model_shape.read(folder), lambda _text: None)
    (group,) = found.groups
    return replace(found, groups=(replace(group, rates=SOME_ON_EACH_SIDE),))


@pytest.fixture
def start(folder: Path) -> Any:
    """``start(calibration)``: an engine that starts anew with it, and what it said."""
    engines: list[Any] = []

    def open_one(file: Path | None) -> tuple[Any, list[str]]:
        said: list[str] = []
        options = Options(
            model=folder, context=256, chunk=64, threads=1, device="cpu", slots=8, calibration=file,
            placement="ostinato:prefill=cooperative",
        )  # fmt: skip
        engines.append(open_engine(options, said.append))
        return engines[-1], said

    yield open_one
    for engine in engines:
        engine.experts.cpu.close()


def test_a_restarted_engine_shares_a_request_as_before_bit_by_bit(
    measured: Calibration, start: Any, tmp_path: Path
) -> None:
    file = tmp_path / "calibration.json"
    calibrations.write(file, measured)
    seen = []
    for _ in range(2):
        engine, said = start(file)
        assert not any("rates" in line or "elsewhere" in line for line in said)
        assert engine.experts.shares.rates == SOME_ON_EACH_SIDE
        logits = engine.logits(list(range(100, 160)))
        seen.append((logits.clone(), engine.experts.uploads, engine.experts.cpu_experts))
    (first, *shares), (again, *others) = seen
    assert torch.equal(first, again)
    assert shares == others
    assert min(shares) > 0, "both sides took part"


def test_without_a_file_the_engine_says_that_it_measured(start: Any) -> None:
    _, said = start(None)
    assert "rates measured now; --calibration FILE makes them repeatable" in said


def test_a_file_without_rates_is_measured_for(measured: Calibration, start: Any, tmp_path: Path) -> None:
    (group,) = measured.groups
    calibrations.write(tmp_path / "old.json", replace(measured, groups=(replace(group, rates=None),)))
    _, said = start(tmp_path / "old.json")
    assert any(line.startswith("the calibration holds no rates: rates measured now") for line in said)


def test_another_machine_or_thread_count_is_one_line_of_warning(
    measured: Calibration, start: Any, tmp_path: Path
) -> None:
    other = replace(measured, machine={**measured.machine, "threads": "15", "processor": "slow"})
    calibrations.write(tmp_path / "other.json", other)
    engine, said = start(tmp_path / "other.json")
    (line,) = [line for line in said if "elsewhere" in line]
    assert "processor slow, here " in line
    assert "threads 15, here 1" in line
    assert engine.experts.shares.rates == SOME_ON_EACH_SIDE, "repeatable all the same"


def test_another_models_calibration_is_refused(measured: Calibration, start: Any, tmp_path: Path) -> None:
    calibrations.write(tmp_path / "model.json", replace(measured, model_hash="else"))
    with pytest.raises(SetupError, match=r"measured with model else, .* run calibrate with this model"):
        start(tmp_path / "model.json")


def test_what_only_one_side_names_is_no_difference() -> None:
    assert calibrated.differences({"gpu": "H200", "threads": "1"}, {"threads": "1", "experts": "bfloat16"}) == []


def test_steps_without_cold_routes_leave_the_tables_as_they_were(folder: Path, opened: Get) -> None:
    engine = opened(folder, context=64, slots=8)
    pool = engine.experts.pool
    before_LE, table_LE = pool.slot_LE.copy(), pool.table_LE.clone()
    counted = engine.experts.cpu_uses_LE.copy()
    assert decode_times.without_cold_routes_ms(engine) > 0
    assert (engine.experts.cpu_uses_LE == counted).all(), "the CPU computed none"
    assert (pool.slot_LE == before_LE).all()
    assert torch.equal(pool.table_LE, table_LE)
    steps = decode_times.measured_steps(engine, 2)
    assert (engine.experts.cpu_uses_LE > counted).any()
    shares_LR = np.array(steps.cold_shares)
    assert shares_LR.shape == (2, 3)
    assert shares_LR.sum(1) == pytest.approx([1.0, 1.0])
