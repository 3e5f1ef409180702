"""``analyse placement``: from recorded routes to misses, coverage, predicted times, a residency and their error."""

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("engines.ostinato.planner.synthetic_routes")

from analysis.cli import main
from analysis.placement import study
from analysis.placement.inputs import calibration_of, read_routes, rooms_of, sizes_of
from analysis.placement.machines import MACHINES
from analysis.placement.study import Room, Routes, Sizes, halves, outcomes, residency, reuse, spread
from engines.ostinato.planner import calibration as calibrations
from engines.ostinato.planner import residency as residencies
from engines.ostinato.planner import routes as recorded
from engines.ostinato.planner.calibration import Calibration, LayerGroup, PrefillPoint
from engines.ostinato.planner.routes import RouteTrace
from engines.ostinato.planner.synthetic_routes import synthetic_routes
from engines.synthetic_moe import SyntheticMoe, write
from replay.record import RecordWriter, TurnRecord, write_result
from workloads.sample_paths import TOKENIZER

SMALL = {"layers": 4, "experts": 16, "experts_per_token": 2, "steps": 400, "steps_per_request": 40}


def drawn(**shape: Any) -> RouteTrace:
    return synthetic_routes(**(SMALL | shape), rng=np.random.default_rng(0))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    recorded.write(tmp_path / "routes.npz", drawn())
    return tmp_path / "routes.npz"


@pytest.fixture
def lab(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """``lab("routes.npz", …)``: exit code, what it prints, what it complains of."""

    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(["placement", *map(str, words)])
        said = capsys.readouterr()
        return int(stop.value.code or 0), said.out, said.err

    return run


def calibration(name: str, **changes: Any) -> Calibration:
    group = LayerGroup(layers=(0, 1, 2, 3), cpu_ms=(0.12, 0.324, 0.508), gpu_ms=0.137, upload_ms=0.53)
    points = (8, 32, 128, 512)
    sweep = tuple(
        PrefillPoint(tokens=n, split_ms=1 + 0.2 * n, upload_ms=10 + 0.5 * 30 * (1 - 0.97**n)) for n in points
    )
    return replace(
        Calibration(groups=(group,), dense_step_ms=2.0, prefill=sweep, model_hash=name, machine={}), **changes
    )


def test_routes_alone_give_misses_and_coverage_by_share_of_the_experts(
    trace: Path, lab: Callable[..., tuple[int, str, str]]
) -> None:
    code, said, _ = lab(trace)
    assert code == 0
    assert "placements learn from 200 decode steps, are judged by 200 others" in said
    for share in ("10%", "25%", "44%", "60%", "80%"):
        assert f"Placements with {share} of the experts" in said
    assert "ostinato:borrow=false" in said
    assert "threshold" not in said.lower().split("with 80%")[0]


def test_a_miss_curve_falls_to_the_first_uses() -> None:
    found = reuse(drawn())
    assert found.misses[0] == 4 * 2
    assert np.all(np.diff(found.misses) <= 0)
    assert found.misses[-1] == pytest.approx(found.first_uses * 8)
    assert [share for share, _ in found.quantiles] == [0.5, 0.75, 0.9, 0.95, 0.99]


def test_a_curve_worked_by_hand() -> None:
    """One layer of three experts, one a token: a b a c a. a comes back over one other expert, twice."""
    steps = np.array([0, 1, 0, 2, 0], np.int16).reshape(5, 1, 1)
    one = RouteTrace(experts_NLK=steps, request_N=np.zeros(5, np.int32), experts=3, model_hash="m", workload_hash="w")
    found = reuse(one)
    assert found.misses.tolist() == [1.0, 1.0, 0.6, 0.6]
    assert found.first_uses == pytest.approx(0.6)
    assert halves(one).same


@pytest.mark.parametrize("share", [0.1, 0.44, 0.8])
def test_ranked_experts_cover_more_than_whole_layers_and_more_room_never_covers_less(share: float) -> None:
    routes = halves(drawn(experts=64, experts_per_token=4))
    sizes = Sizes(expert_bytes=(1,) * 4, gpus=spread(4, 2))
    room, more = (Room(name=str(s), pool_bytes=(int(s * 128),) * 2) for s in (share, share + 0.1))
    found = {
        (at.name, one.policy): one
        for at, one in outcomes(
            routes, sizes, [room, more], calibration=None, policies=["layers", "ostinato:borrow=false"]
        )
    }
    ours = found[room.name, "ostinato:borrow=false"]
    assert ours.coverage >= found[room.name, "layers"].coverage
    assert found[more.name, "ostinato:borrow=false"].coverage >= ours.coverage
    assert ours.decode_step_ms is None


def test_counts_are_drawn_as_often_as_counted_and_said_to_be_an_estimate(
    tmp_path: Path, lab: Callable[..., tuple[int, str, str]]
) -> None:
    counts = drawn().counts()
    again = study.draw(counts, 4000, np.random.default_rng(1)).counts()
    np.testing.assert_allclose(again.rho_LE, counts.rho_LE, atol=0.04)
    steps = study.draw(counts, 50, np.random.default_rng(2)).experts_NLK
    assert all(len(set(row)) == 2 for row in steps.reshape(-1, 2).tolist())
    recorded.write(tmp_path / "counts.npz", counts)
    code, said, _ = lab(tmp_path / "counts.npz")
    assert code == 0
    assert "only counts were recorded" in said


def test_the_papers_machine_predicts_the_papers_decode_steps() -> None:
    """DeepSeek-V4-Flash's shape with a router as skewed as its own: 85 % of the routes in 5,702 experts.

    Measured by the paper: 47.1 ms of llama.cpp's layer placement (table 3), 27.01 ms without and 25.63 ms with
    borrowed memory (table 8), a switch of the prefill paths between 512 and 1,024 tokens.
    """
    machine = MACHINES["rtx4090d_x4"]
    routes = halves(
        drawn(layers=43, experts=256, experts_per_token=6, steps=1000, steps_per_request=100, spread=0.25)
    )
    sizes = sizes_of(routes, shape=None, expert_size=None, machine=machine, gpus=1, borrowed=0, sized=False)
    (room,) = rooms_of([], routes, sizes, shape=None, machine=machine, context=0)
    times = calibration_of(None, routes, sizes, machine)
    asked = ["layers", "ostinato:borrow=false", "ostinato"]
    made = {one.policy: one for _, one in outcomes(routes, sizes, [room], calibration=times, policies=asked)}
    assert made["layers"].slots == pytest.approx(5702, abs=4)
    assert made["ostinato:borrow=false"].coverage == pytest.approx(0.84, abs=0.03)
    for policy, measured_ms in (("layers", 47.1), ("ostinato:borrow=false", 27.01), ("ostinato", 25.63)):
        assert made[policy].decode_step_ms == pytest.approx(measured_ms, rel=0.15), policy
    kept = residency(routes, sizes, room, calibration=times)
    counts = routes.judged.counts()
    costs = machine.difference(sizes.expert_bytes, cold_per_token=study.cold_per_token(counts, kept.resident_LE))
    predicted = study.threshold(costs, counts, kept.resident_LE)
    assert predicted is not None
    assert 512 <= predicted <= 2048


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder, routes recorded with it, its calibration."""
    folder = tmp_path_factory.mktemp("lab")
    spec = SyntheticMoe(layers=4, experts=16, experts_per_token=2, hidden=64, expert_width=32, heads=2, kv_heads=1)
    write(spec, tokenizer=TOKENIZER, safetensors=folder / "model", gguf=None)
    from engines.ostinato.planner import model_shape

    name = model_shape.read(folder / "model").model_hash
    recorded.write(folder / "routes.npz", replace(drawn(), model_hash=name))
    calibrations.write(folder / "calibration.json", calibration(name))
    return folder


def test_a_model_and_a_calibration_give_times_a_split_and_a_residency_to_load(
    model: Path, tmp_path: Path, lab: Callable[..., tuple[int, str, str]]
) -> None:
    out = tmp_path / "lab"
    words = ["--model", model / "model", "--calibration", model / "calibration.json", "--context", 128]
    budgets = ["--budget", "540MiB", "--budget", "541MiB", "--sequences", 4, "--out", out]
    code, said, complaint = lab(model / "routes.npz", *words, *budgets)
    assert code == 0, complaint
    for expected in (
        "mv_wsa",
        "50_50",
        "KV-blind",
        "against layers",
        "measured by the calibration: ",
        "Prefill: from how many tokens on",
    ):
        assert expected in said
    assert (out / "placement.txt").read_text().strip() == said.partition("\n\nwrote ")[0].strip()
    loaded = residencies.read(out / "residency.json")
    assert loaded.source == "recorded"
    assert 0 < loaded.resident_LE.sum() <= 64
    rows = list(csv.DictReader((out / "placements.csv").open()))
    assert {row["policy"] for row in rows} == set(study.POLICIES) - {"ostinato"}
    assert len({row["room"] for row in rows}) == 2
    assert len(list(csv.reader((out / "miss_curve.csv").open()))) == 1 + 17


def run_folder(folder: Path, *, step_ms: float, slots: int, total: int = 64) -> None:
    """A run of our engine whose decode steps take as long as said."""
    folder.mkdir(parents=True)
    tokens = tuple(2_000_000_000 + round(n * step_ms * 1e6) for n in range(101))
    with RecordWriter(folder) as writer:
        writer.append(
            TurnRecord(
                engine="ostinato", session_id="s", turn=0, kind="first", attempt=0, status="ok", prompt_tokens=9,
                new_tokens=9, output_tokens=101, due_ns=1_000_000_000, sent_ns=1_000_000_000,
                first_byte_ns=tokens[0], token_ns=tokens, end_ns=tokens[-1], verified_by="ids",
            )
        )  # fmt: skip
    result = {
        "version": 1, "status": "complete", "error": None,
        "engine": {
            "name": "ostinato", "label": "Ostinato", "note": "", "server": {},
            "settings": {"options": {"placement": "ostinato:borrow=false"}},
        },
        "workload": {"name": "w", "hash": "w", "sessions": 1, "turns": 1, "losses": {}},
        "model": {"name": "m", "hash": "m"}, "environment": {}, "config": {},
        "clock": {"perf_ns": 0, "wall_ns": 1}, "sessions": {"s": "complete"}, "validity": [],
    }  # fmt: skip
    write_result(folder, result)
    (folder / "server.log").write_text(f"loading\n{slots} of {total} experts are resident (1.2 s)\n")


def test_predictions_are_held_against_measured_runs_of_our_engine(
    model: Path, tmp_path: Path, lab: Callable[..., tuple[int, str, str]]
) -> None:
    routes = read_routes(model / "routes.npz", None)
    times = calibrations.read(model / "calibration.json")
    predicted_ms = _predicted_ms(routes, times, slots=28)
    run_folder(tmp_path / "runs" / "ostinato", step_ms=predicted_ms / 1.1, slots=28)
    words = ["--expert-size", 12288, "--budget", 28 * 12288, "--calibration", model / "calibration.json"]
    code, said, complaint = lab(model / "routes.npz", *words, "--runs", tmp_path / "runs")
    assert code == 0, complaint
    assert f"{predicted_ms:.2f}" in said
    assert "largest error +10.0% (ostinato)" in said


def _predicted_ms(routes: Routes, times: Calibration, *, slots: int) -> float:
    sizes = Sizes(expert_bytes=(12288,) * 4, gpus=spread(4, 1))
    room = Room(name="r", pool_bytes=(slots * 12288,))
    ((_, one),) = outcomes(routes, sizes, [room], calibration=times, policies=["ostinato:borrow=false"])
    assert one.decode_step_ms is not None
    return one.decode_step_ms


def test_a_whole_measured_step_says_what_its_parts_leave_out(
    model: Path, tmp_path: Path, lab: Callable[..., tuple[int, str, str]]
) -> None:
    routes = read_routes(model / "routes.npz", None)
    times = calibrations.read(model / "calibration.json")
    whole = replace(times, decode_step_ms=_predicted_ms(routes, times, slots=28) + 1.5, resident_experts=28)
    calibrations.write(tmp_path / "whole.json", whole)
    words = ["--expert-size", 12288, "--budget", 28 * 12288, "--calibration", tmp_path / "whole.json"]
    code, said, complaint = lab(model / "routes.npz", *words)
    assert code == 0, complaint
    assert "so 3.50 ms lie outside the MoE layers (2.00 ms when measured by themselves)" in said
    assert f"{whole.decode_step_ms:.2f}" in said.partition("ostinato:borrow=false")[2]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--budget", "1GiB"], "an expert's size is not known; add --model or --expert-size"),
        (["--machine", "rtx4090d_x4"], "an expert's size is not known; add --model or --expert-size"),
        (["--runs", "."], "--runs needs the machine's times; add --calibration or --machine"),
        (["--development", "other.npz"], "are of different models; record both with one"),
        (["--calibration", "other.json"], "calibrate with that model"),
        (["--budget", "plenty"], "'plenty' is no size; write one as 16GiB"),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(
    trace: Path,
    lab: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(trace.parent)
    recorded.write(Path("other.npz"), drawn(experts=8))
    calibrations.write(Path("other.json"), calibration("other"))
    code, _, said = lab(trace, *words)
    assert code == 2
    assert complaint in said
    assert len(said.splitlines()) == 1


def test_a_file_that_is_none_is_named(tmp_path: Path, lab: Callable[..., tuple[int, str, str]]) -> None:
    (tmp_path / "routes.npz").write_bytes(b"no archive")
    code, _, said = lab(tmp_path / "routes.npz")
    assert code == 2
    assert "is no file of recorded routes" in said
