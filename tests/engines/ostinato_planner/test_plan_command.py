"""``plan`` and ``explain`` on a model written to disk."""

import argparse
from pathlib import Path

import numpy as np
import pytest

from engines.ostinato.commands import add_explain, add_plan, size
from engines.ostinato.errors import SetupError
from engines.ostinato.planner import calibration as calibrations
from engines.ostinato.planner import model_shape, residency, routes
from engines.ostinato.planner.calibration import Calibration, LayerGroup, PrefillPoint
from engines.ostinato.planner.synthetic_routes import synthetic_routes
from engines.synthetic_moe import SyntheticMoe, write
from workloads.sample_paths import TOKENIZER

SPEC = SyntheticMoe(layers=4, experts=16, experts_per_token=2, hidden=64, expert_width=32, heads=2, kv_heads=1)
EXPERT_BYTES = 3 * 64 * 32 * 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    write(SPEC, tokenizer=TOKENIZER, safetensors=folder / "model", gguf=folder / "model.gguf")
    return folder


@pytest.fixture(scope="module")
def recorded(model: Path) -> Path:
    drawn = synthetic_routes(
        layers=4,
        experts=16,
        experts_per_token=2,
        steps=400,
        steps_per_request=40,
        rng=np.random.default_rng(0),
    )
    name = model_shape.read(model / "model").model_hash
    trace = routes.RouteTrace(**(vars(drawn) | {"model_hash": name}))
    routes.write(model / "development.npz", trace.requests(0, 5).counts())
    routes.write(model / "heldout.npz", trace.requests(5, 10))
    return model


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    add_plan(commands)
    add_explain(commands)
    args = parser.parse_args(words)
    code: int = args.run(args)
    return code


def test_both_formats_give_the_same_sizes(model: Path) -> None:
    folder, gguf = model_shape.read(model / "model"), model_shape.read(model / "model.gguf")
    assert folder.moe_layers == gguf.moe_layers == (0, 1, 2, 3)
    assert folder.expert_bytes == gguf.expert_bytes == (EXPERT_BYTES,) * 4
    assert (folder.experts, folder.experts_per_token) == (gguf.experts, gguf.experts_per_token) == (16, 2)
    assert folder.kv_bytes_per_token == gguf.kv_bytes_per_token == (2 * 2 * 1 * 64,) * 4
    attention = 2 * (64 * 128 + 2 * 64 * 64 + 128 * 64 + 2 * 64 + 2 * 64 + 16 * 64)
    assert folder.dense_bytes == (attention,) * 4
    assert model_shape.spread(folder, 3) == [range(1), range(1, 2), range(2, 4)]


def test_plan_and_explain(recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "residency.json"
    name = model_shape.read(recorded / "model").model_hash
    group = LayerGroup(layers=(0, 1, 2, 3), cpu_ms=(0.12, 0.324, 0.5), gpu_ms=0.137, upload_ms=0.53)
    measured = Calibration(
        groups=(group,),
        dense_step_ms=2.0,
        prefill=tuple(
            PrefillPoint(tokens=n, split_ms=1 + 0.2 * n, upload_ms=10 + 0.5 * 30 * (1 - 0.97**n))
            for n in (8, 32, 128, 512)
        ),
        model_hash=name,
        machine={"gpu": "none"},
        decode_step_ms=2.9,
    )
    calibrations.write(tmp_path / "calibration.json", measured)
    base = ["plan", "--model", str(recorded / "model"), "--vram-budget", "1GiB", "--vram-budget", "1GiB"]
    made = [*base, "--slots", "14", "--counts", str(recorded / "development.npz"), "--out", str(out)]
    assert run(*made, "--calibration", str(tmp_path / "calibration.json")) == 0
    printed = capsys.readouterr().out
    plan = residency.read(out)
    assert [len(pool.resident) for pool in plan.pools] == [14, 14]
    assert plan.coverage is not None
    assert f"development routes covered: {plan.coverage:.1%}" in printed
    assert plan.predicted is not None
    assert f"predicted decode step: {plan.predicted.decode_step_ms:.3f} ms" in printed

    words = ["explain", "--residency", str(out), "--calibration", str(tmp_path / "calibration.json")]
    assert run(*words, "--counts", str(recorded / "heldout.npz")) == 0
    printed = capsys.readouterr().out
    for said in ("28 of 64 experts (43.8%)", "with 1 GiB more on every GPU 100.0%", "measured ms", "2.900"):
        assert said in printed
    for said in ("saves", "is more than", "hides at most", "threshold Np, measured", "threshold Np, predicted"):
        assert said in printed
    assert "assumes" not in printed  # a trace is exact
    assert run("explain", "--residency", str(out)) == 0
    assert run("explain", "--residency", str(out), "--counts", str(recorded / "development.npz")) == 0
    assert "assumes" in capsys.readouterr().out


def test_no_recording_is_said_plainly(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "residency.json"
    words = ["plan", "--model", str(model / "model"), "--vram-budget", "600MiB", "--context", "128"]
    assert run(*words, "--out", str(out)) == 0
    printed = capsys.readouterr().out
    assert "a uniform plan" in printed
    assert "UNIFORM" in printed
    assert residency.read(out).resident_LE.all()


def test_files_of_different_models_are_refused(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "residency.json"
    other = tmp_path / "other.npz"
    routes.write(other, synthetic_routes(
        layers=4, experts=16, experts_per_token=2, steps=4, steps_per_request=4, rng=np.random.default_rng(0)
    ))  # fmt: skip
    words = ["plan", "--model", str(recorded / "model"), "--vram-budget", "1GiB", "--slots", "9", "--out", str(out)]
    with pytest.raises(SetupError, match="record them with this model"):
        run(*words, "--counts", str(other))
    assert run(*words) == 0
    with pytest.raises(SetupError, match="name files of one model"):
        run("explain", "--residency", str(out), "--counts", str(other))


def test_too_little_memory_says_what_to_change(model: Path, tmp_path: Path) -> None:
    words = ["plan", "--model", str(model / "model"), "--vram-budget", "100MiB", "--out", str(tmp_path / "r.json")]
    with pytest.raises(SetupError, match="raise --vram-budget or lower --context"):
        run(*words)
    with pytest.raises(SetupError, match="set --model"):
        model_shape.read(tmp_path / "nothing")


@pytest.mark.parametrize(("text", "value"), [("16GiB", 16 << 30), ("512M", 512 << 20), ("1.5g", 3 << 29), ("77", 77)])
def test_sizes(text: str, value: int) -> None:
    assert size(text) == value


def test_a_word_is_no_size() -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write one as 16GiB"):
        size("plenty")
