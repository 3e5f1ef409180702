"""Layers whose experts differ in size: each size has slots of its own, and everything stays exact."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")
pytest.importorskip("gguf", reason="the models are written with the gguf package")

import torch
from families import Tiny, difference
from gguf_writing import write
from mxfp4_writing import as_mxfp4, dequantised

from engines.ostinato.errors import SetupError
from engines.ostinato.experts import whole_LE
from engines.ostinato.loading import load_model
from engines.ostinato.placement.registry import POLICIES
from engines.ostinato.planner import model_shape, residency, routes
from engines.ostinato.planner.plan import Gpu, plan
from engines.ostinato.planner.routes import RouteCounts

Get = Callable[..., Any]
SMALL = (0, 2)
"""The layers in MXFP4."""
PROMPT = 90


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def mixed(tiny: Get, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tiny, Path, torch.Tensor]:
    """A gpt-oss model of four layers with two kinds of experts, its folder, and the logits it should give."""
    model = tiny("gpt_oss", num_hidden_layers=4)
    folder = as_mxfp4(model, tmp_path_factory.mktemp("mixed") / "model", SMALL)
    plain = model.plain()
    plain.load_state_dict(dequantised(folder), strict=False)
    with torch.inference_mode():
        return model, folder, plain(torch.tensor([model.ids])).logits[0]


def steps_of(engine: Any, ids: list[int]) -> torch.Tensor:
    engine.reset()
    engine.prefill(ids[:PROMPT])
    return torch.stack([engine.logits([token]).clone() for token in ids[PROMPT:]])


@pytest.mark.parametrize("device", ["cpu", "cpu,cpu"])
def test_resident_experts_of_two_sizes_give_the_plain_logits(mixed: Any, opened: Get, device: str) -> None:
    model, folder, wanted = mixed
    engine = opened(folder, slots=32, device=device)
    sizes = [(group.pool.store.layout.dtype, group.layers) for group in engine.groups]
    if device == "cpu":
        assert sizes == [("mxfp4", (0, 2)), ("float32", (1, 3))]
    else:
        assert sizes == [("mxfp4", (0,)), ("float32", (1,)), ("mxfp4", (2,)), ("float32", (3,))]
    for group in engine.groups:
        every = [(int(layer), int(expert)) for layer, expert in np.ndindex(group.pool.slot_LE.shape)]
        assert group.pool.slots == len(every)
        group.pool.fill(every)
    assert difference(steps_of(engine, model.ids), wanted[PROMPT:]) < 1e-5


@pytest.mark.parametrize(
    "placement",
    [pytest.param(name, marks=() if name in ("ostinato", "lru_cache") else pytest.mark.slow) for name in POLICIES],
)
def test_every_policy_serves_experts_of_two_sizes(mixed: Any, opened: Get, placement: str) -> None:
    model, folder, wanted = mixed
    engine = opened(folder, slots=16, placement=placement)
    small, large = engine.groups
    assert small.pool.slots > 1
    assert large.pool.slots > 1
    used = sum(group.pool.slots * group.pool.store.layout.nbytes for group in engine.groups)
    mean = (small.pool.store.layout.nbytes + large.pool.store.layout.nbytes) / 2
    assert 16 * mean - small.pool.store.layout.nbytes < used <= 16 * mean
    for path in ("split", "upload", "auto"):
        for group in engine.groups:
            group.shares.path = path
        # The CPU's kernels take bfloat16 activations for MXFP4.
        assert difference(steps_of(engine, model.ids), wanted[PROMPT:]) < 2e-2
    for group in engine.groups:
        group.shares.path = "upload"
    if POLICIES[placement].miss == "cpu":
        engine.reset()
        assert difference(engine.logits(model.ids[:PROMPT]), wanted[PROMPT - 1]) < 1e-5


def counts_of(model: Path, seed: int) -> RouteCounts:
    shape = model_shape.read(model)
    draw = np.random.default_rng(seed)
    uses = (draw.lognormal(0, 2, (len(shape.moe_layers), shape.experts)) * 1000).astype(np.int64)
    return RouteCounts(
        decode_LE=uses, prefill_LE=uses, decode_steps=500, prefill_tokens=500, experts_per_token=2,
        model_hash=shape.model_hash, workload_hash="",
    )  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_memory_is_split_between_sizes_so_that_most_routes_are_covered(
    mixed: Any, opened: Get, tmp_path: Path, seed: int
) -> None:
    _, folder, _ = mixed
    counts = counts_of(folder, seed)
    routes.write(tmp_path / "routes.npz", counts)
    engine = opened(folder, slots=12, routes=tmp_path / "routes.npz")
    sizes = [group.pool.store.layout.nbytes for group in engine.groups]
    room = 12 * sum(sizes) // 2
    resident_LE = whole_LE(engine.groups, lambda group: group.pool.resident_LE)
    got = counts.ranking_LE[resident_LE].sum()

    def covered(taken: tuple[int, int]) -> float:
        best = [np.sort(counts.ranking_LE[list(group.layers)].ravel())[::-1] for group in engine.groups]
        return float(sum(rank[:count].sum() for rank, count in zip(best, taken, strict=True)))

    fits = [pair for pair in itertools.product(range(17), repeat=2) if np.dot(pair, sizes) <= room]
    assert got == pytest.approx(max(map(covered, fits)))


def test_a_plan_of_two_sizes_is_what_the_engine_loads(mixed: Any, opened: Get, tmp_path: Path) -> None:
    _, folder, _ = mixed
    shape, counts = model_shape.read(folder), counts_of(folder, 5)
    assert len(set(shape.expert_bytes)) == 2
    made = plan(
        [Gpu(layers=range(2), pool_bytes=6 * max(shape.expert_bytes)),
         Gpu(layers=range(2, 4), pool_bytes=4 * max(shape.expert_bytes))],
        experts=8, expert_bytes=shape.expert_bytes, counts=counts, model_hash=shape.model_hash,
    )  # fmt: skip
    residency.write(tmp_path / "plan.json", made)
    engine = opened(folder, device="cpu,cpu", slots=32, residency=tmp_path / "plan.json")
    resident_LE = whole_LE(engine.groups, lambda group: group.pool.resident_LE)
    assert (resident_LE >= made.resident_LE).all()
    assert (resident_LE <= made.grown_LE).all()


def test_layers_of_a_gguf_file_may_differ_but_not_the_matrices_of_one(
    tiny: Get, opened: Get, mixed: Any, tmp_path: Path
) -> None:
    model, folder, wanted = mixed
    kinds = {layer: "MXFP4" if layer in SMALL else "F32" for layer in range(4)}
    engine = opened(write(model, tmp_path / "model.gguf", lambda layer, _matrix: kinds[layer]), slots=32)
    other = opened(folder, slots=32)
    for one, two in zip(engine.groups, other.groups, strict=True):
        assert torch.equal(one.pool.store.tensor, two.pool.store.tensor)
    assert difference(steps_of(engine, model.ids), wanted[PROMPT:]) < 2e-2
    halves = write(model, tmp_path / "halves.gguf", lambda _layer, matrix: "MXFP4" if matrix == "down" else "F32")
    with pytest.raises(SetupError, match=r"holds MXFP4 and other matrices within model\.layers\.0"):
        load_model(halves, device=torch.device("cpu"), dtype="auto")
