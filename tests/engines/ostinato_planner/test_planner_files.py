"""Recorded routes, residencies and calibrations come back from their files as they were; others are refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from engines.ostinato.errors import SetupError
from engines.ostinato.planner import calibration as calibrations
from engines.ostinato.planner import residency as residencies
from engines.ostinato.planner import routes
from engines.ostinato.planner.calibration import Calibration, LayerGroup, PrefillPoint
from engines.ostinato.planner.plan import GIB, Gpu, plan
from engines.ostinato.planner.routes import RouteCounts, RouteTrace


def trace(model: str = "m", workload: str = "w") -> RouteTrace:
    experts = np.array([[[0, 1], [2, 3]], [[0, 2], [2, 1]], [[3, 0], [0, 1]]], np.int16)
    return RouteTrace(
        experts_NLK=experts,
        request_N=np.array([0, 0, 1], np.int32),
        experts=4,
        model_hash=model,
        workload_hash=workload,
    )


def calibration() -> Calibration:
    return Calibration(
        groups=(
            LayerGroup(layers=(0, 2), cpu_ms=(0.12, 0.324, 0.508), gpu_ms=0.137, upload_ms=0.53),
            LayerGroup(layers=(1,), cpu_ms=(0.11, 0.3, 0.5), gpu_ms=0.13, upload_ms=0.6),
        ),
        dense_step_ms=10.0,
        prefill=(
            PrefillPoint(tokens=100, split_ms=50.0, upload_ms=150.0, cooperative_ms=45.0),
            PrefillPoint(tokens=200, split_ms=100.0, upload_ms=160.0),
            PrefillPoint(tokens=400, split_ms=200.0, upload_ms=180.0),
        ),
        model_hash="m",
        machine={"gpu": "H200"},
        decode_step_ms=12.5,
    )


def test_counts_of_a_trace_worked_by_hand() -> None:
    counts = trace().counts()
    assert counts.decode_LE.tolist() == [[3, 1, 1, 1], [1, 2, 2, 1]]
    assert counts.decode_steps == 3
    resident = np.array([[True, False, False, False], [False, True, True, False]])
    assert counts.coverage(resident) == pytest.approx(7 / 12)
    cold = trace().cold(resident)
    assert cold.exact
    assert cold.mu_L.tolist() == pytest.approx([1.0, 2 / 3])
    assert cold.q_L.tolist() == pytest.approx([1.0, 2 / 3])
    assert cold.share_LR[1].tolist() == pytest.approx([1 / 3, 2 / 3, 0])
    estimated = counts.cold(resident)
    assert not estimated.exact
    assert estimated.mu_L.tolist() == pytest.approx(cold.mu_L.tolist())
    assert np.all(estimated.q_L <= np.minimum(1, estimated.mu_L))
    assert estimated.share_LR.sum(1).tolist() == pytest.approx([1, 1])


def test_counts_and_traces_come_back(tmp_path: Path) -> None:
    path = tmp_path / "routes.npz"
    routes.write(path, trace())
    again = routes.read(path)
    assert isinstance(again, RouteTrace)
    assert np.array_equal(again.experts_NLK, trace().experts_NLK)
    assert again.requests(1, 2).experts_NLK.shape == (1, 2, 2)
    counts = routes.read_counts(path)
    routes.write(path, counts)
    same = routes.read(path)
    assert isinstance(same, RouteCounts)
    assert np.array_equal(same.decode_LE, counts.decode_LE)
    assert (same.model_hash, same.workload_hash, same.decode_steps) == ("m", "w", 3)
    assert [file.name for file in tmp_path.iterdir()] == ["routes.npz"]


def test_recordings_of_one_model_add_up() -> None:
    both = trace().counts() + trace(workload="v").counts()
    assert both.decode_steps == 6
    assert both.workload_hash == "v+w"
    with pytest.raises(SetupError, match="different models"):
        trace().counts() + trace(model="n").counts()


def test_unreadable_routes_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="name a file of recorded routes"):
        routes.read(tmp_path / "none.npz")
    text = tmp_path / "text.npz"
    text.write_text("not an archive")
    with pytest.raises(SetupError, match="no file of recorded routes"):
        routes.read(text)
    newer = tmp_path / "newer.npz"
    np.savez(newer, version=99)
    with pytest.raises(SetupError, match="version 99"):
        routes.read(newer)
    np.savez(newer, version=1)
    with pytest.raises(SetupError, match="lacks the field"):
        routes.read(newer)


def test_a_residency_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "residency.json"
    made = plan(
        [Gpu(layers=range(1), pool_bytes=2 * GIB), Gpu(layers=range(1, 2), pool_bytes=GIB)],
        experts=4,
        expert_bytes=[GIB, GIB],
        counts=trace().counts(),
        model_hash="m",
    )
    residencies.write(path, made)
    assert residencies.read(path) == made
    assert json.loads(path.read_text())["gpus"][0]["resident"] == [[0, 0], [0, 1]]
    assert made.resident_LE.tolist() == [[True, True, False, False], [False, True, False, False]]
    assert made.grown_LE.tolist() == [[True, True, True, False], [False, True, True, False]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "calibration"}, "no residency file"),
        ({"version": 9}, "version 9"),
        ({"experts": 1}, "can't hold it"),
        ({"gpus": [{"layers": [0, 1]}]}, "damaged"),
    ],
)
def test_other_residencies_are_refused(tmp_path: Path, change: dict, message: str) -> None:
    path = tmp_path / "residency.json"
    gpus = [Gpu(layers=range(2), pool_bytes=2)]
    residencies.write(path, plan(gpus, experts=4, expert_bytes=[1, 1], counts=trace().counts(), model_hash="m"))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(SetupError, match=message):
        residencies.read(path)


def test_a_calibration_comes_back_and_gives_the_constants(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    calibrations.write(path, calibration())
    again = calibrations.read(path)
    assert again == calibration()
    costs = again.costs()
    assert np.asarray(costs.alpha).tolist() == pytest.approx([0.14, 0.1, 0.14])
    assert np.asarray(costs.beta).tolist() == pytest.approx([0.184, 0.2, 0.184])
    assert again.upload_ms_L.tolist() == [0.53, 0.6, 0.53]


def test_measured_sweep_gives_threshold_and_path() -> None:
    assert calibration().threshold() == 350  # -60 at 200, +20 at 400: zero at 350
    assert calibration().best_path(100) == "cooperative"
    assert calibration().best_path(300, ("split", "upload")) == "split"
    assert calibration().best_path(380, ("split", "upload")) == "upload"
    assert calibration().prefill_ms("split", 800) == pytest.approx(400.0)


def test_calibrations_that_cannot_be_are_refused(tmp_path: Path) -> None:
    group = LayerGroup(layers=(0,), cpu_ms=(0.1, 0.2), gpu_ms=0.1, upload_ms=0.1)
    with pytest.raises(SetupError, match="leaves out layers"):
        Calibration(groups=(group, group), dense_step_ms=1.0, prefill=(), model_hash="m")
    with pytest.raises(SetupError, match="name a calibration file"):
        calibrations.read(tmp_path / "none.json")
    assert group.line() == pytest.approx((0.1, 0.1))
