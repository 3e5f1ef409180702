"""Whatever lies where and whichever way a pass takes: the logits are those of plain transformers."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the engine needs the extra `ostinato`")

import torch
from families import FAMILIES, Tiny, difference
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.ostinato.errors import SetupError
from engines.ostinato.placement.ostinato import Ostinato
from engines.ostinato.placement.policy import PrefillPath
from engines.ostinato.placement.registry import POLICIES
from engines.ostinato.shares import Rates
from engines.ostinato.staging import Staging

Get = Callable[..., Any]
TOLERANCE = 1e-5
RATES = Rates(upload_ms=1.0, cpu_tokens=(1.0, 8.0), cpu_ms=(1.0, 1.5))
"""So that ``cooperative`` shares the experts of a pass the same way on every machine."""
PROMPT = 90
STEPS = 4


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def experts_of(engine: Any) -> list[tuple[int, int]]:
    return [(int(layer), int(expert)) for layer, expert in np.ndindex(engine.experts.pool.slot_LE.shape)]


def place(engine: Any, residency: str) -> None:
    """Make none, all, or a random half of the experts resident."""
    every = experts_of(engine)
    share = {"empty": 0, "half": len(every) // 2, "full": len(every)}[residency]
    engine.experts.pool.fill(random.Random(1).sample(every, share))


def check_turns(engine: Any, tiny: Tiny) -> None:
    """A prompt, steps, a turn that leaves the text early, and one that comes back to it."""
    ids, wanted = tiny.ids, tiny.wanted
    engine.reset()
    engine.prefill(ids[:PROMPT])
    for i in range(PROMPT, PROMPT + STEPS):
        assert difference(engine.logits([ids[i]]), wanted[i]) < TOLERANCE
    engine.prefill([*ids[:40], 5])
    assert engine.prefill(ids[:95]).cached_tokens == 40
    assert difference(engine.logits([ids[95]]), wanted[95]) < TOLERANCE


def check_greedy(engine: Any, tiny: Tiny, steps: int = 12) -> None:
    """Decode, then ask the plain model which token it would have chosen after each."""
    prompt = tiny.ids[:PROMPT]
    engine.reset()
    first = engine.prefill(prompt).next_id
    chosen = [first, *engine.decode(first, steps, None)]
    assert chosen == tiny.logits([*prompt, *chosen[:-1]])[PROMPT - 1 :].argmax(-1).tolist()


@pytest.mark.parametrize("path", ["split", "upload", "cooperative"])
@pytest.mark.parametrize("residency", ["empty", "half", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_residency_and_path_gives_the_plain_logits(
    family: str, residency: str, path: str, tiny: Get, opened: Get
) -> None:
    model = tiny(family)
    engine = opened(model.folder, slots=64)
    place(engine, residency)
    engine.experts.shares.path = path
    engine.experts.shares.rates = RATES
    check_turns(engine, model)
    engine.prefill([7, *model.ids[:50]])
    assert (engine.experts.cpu_experts > 0) == (residency != "full" and path != "upload")
    if residency == "full" or path == "split":
        assert engine.experts.uploads == 0
    elif path == "upload":
        assert engine.experts.uploads > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_decoding_chooses_the_plain_tokens(family: str, tiny: Get, opened: Get) -> None:
    model = tiny(family)
    engine = opened(model.folder, slots=64)
    place(engine, "half")
    check_greedy(engine, model)


def _some(family: str, placement: str) -> Any:
    quick = family == "qwen3_moe" or (family == "gpt_oss" and placement in ("ostinato", "lru_cache"))
    return pytest.param(family, placement, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(
    ("family", "placement"), [_some(family, placement) for family in FAMILIES for placement in POLICIES]
)
def test_every_policy_gives_the_plain_logits_and_tokens(family: str, placement: str, tiny: Get, opened: Get) -> None:
    model = tiny(family)
    experts = opened(model.folder, slots=64).experts.pool.slot_LE.size
    fetches = POLICIES[placement].miss == "fetch"
    for share in (0.4, 1.0) if fetches else (0.0, 0.4):
        engine = opened(model.folder, placement=placement, slots=round(share * experts))
        check_turns(engine, model)
        check_greedy(engine, model, steps=6)
    if fetches:
        with pytest.raises(SetupError, match="brings all 2 experts of a token into slots"):
            opened(model.folder, placement=placement, slots=1)


@pytest.mark.parametrize("chunk", [1, 7, 32, 2048])
@pytest.mark.parametrize("family", ["gpt_oss", "deepseek_v3", "deepseek_v4"])
def test_a_prompt_may_be_computed_in_chunks_of_any_size(family: str, chunk: int, tiny: Get, opened: Get) -> None:
    model = tiny(family)
    engine = opened(model.folder, slots=64)
    place(engine, "half")
    engine.experts.shares.path = "split"
    usual, engine.chunk = engine.chunk, chunk
    try:
        check_turns(engine, model)
    finally:
        engine.chunk = usual


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "deepseek_v4"])
def test_experts_copied_before_their_routes_are_known_change_nothing(family: str, tiny: Get, opened: Get) -> None:
    model = tiny(family)
    engine = opened(model.folder, slots=64)
    place(engine, "half")
    experts = engine.experts
    usual = experts.staging
    experts.staging = Staging(experts.pool.store, torch.device("cpu"), 4, ahead=3)
    experts.early_L = [np.flatnonzero(slots_E < 0) for slots_E in experts.pool.slot_LE]
    experts.shares.rates = RATES
    try:
        for path in ("split", "upload", "cooperative"):
            experts.shares.path = path
            check_turns(engine, model)
    finally:
        experts.staging, experts.early_L = usual, []


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_request_gives_the_same_bits(family: str, tiny: Get, opened: Get) -> None:
    model = tiny(family)
    seen = []
    for threads in (1, 2):  # and the same for any number of them
        engine = opened(model.folder, slots=64, threads=threads)
        place(engine, "half")
        engine.experts.shares.path = "split"
        for _ in range(2):
            engine.reset()
            engine.prefill(model.ids[:PROMPT])
            seen.append(torch.stack([engine.logits([token]) for token in model.ids[PROMPT : PROMPT + 3]]))
    assert all(torch.equal(seen[0], other) for other in seen[1:])


class _Threshold(Ostinato):
    """Uploads from 20 tokens on."""

    def prefill_path(self, tokens: int) -> PrefillPath:
        return PrefillPath("split" if tokens < 20 else "upload")


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
@settings(
    max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_random_residency_and_lengths_around_the_threshold(
    family: str, tiny: Get, opened: Get, data: st.DataObject
) -> None:
    model = tiny(family)
    engine = opened(model.folder, slots=64)
    every = experts_of(engine)
    engine.experts.pool.fill(data.draw(st.lists(st.sampled_from(every), unique=True, max_size=len(every))))
    engine.experts.shares.path = "auto"
    engine.experts.policy, usual = _Threshold(), engine.experts.policy
    try:
        engine.reset()
        end = 0
        for length in data.draw(st.lists(st.integers(17, 23), min_size=1, max_size=3)):
            end += length
            got = engine.logits(model.ids[end - length : end])
            assert difference(got, model.wanted[end - 1]) < TOLERANCE
        token = data.draw(st.integers(end, len(model.ids) - 1))
        engine.prefill(model.ids[:token])
        assert difference(engine.logits([model.ids[token]]), model.wanted[token]) < TOLERANCE
    finally:
        engine.experts.policy = usual


# With every expert chosen there is no near-tie that bfloat16 could decide otherwise: each logit can be compared.
_ALL_CHOSEN: dict[str, dict[str, int]] = {
    family: {"num_experts_per_tok": 8} | ({"n_group": 1, "topk_group": 1} if family == "deepseek_v3" else {})
    for family in FAMILIES
}


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_as_near_to_float32_as_plain_bfloat16(family: str, tiny: Get, opened: Get) -> None:
    model = tiny(family, **_ALL_CHOSEN[family])
    plain = model.plain(torch.bfloat16)
    with torch.inference_mode():
        wanted = plain(torch.tensor([model.ids])).logits[0]
    engine = opened(model.folder, slots=64, dtype="bfloat16")
    own = dict(plain.named_parameters()) | dict(plain.named_buffers())
    for name, tensor in (*engine._forward.model.named_parameters(), *engine._forward.model.named_buffers()):
        assert own[name].dtype == tensor.dtype, f"{name} is kept in another precision than by transformers"
    rounding = difference(wanted, model.wanted)
    for residency in ("empty", "full"):
        place(engine, residency)
        engine.reset()
        engine.prefill(model.ids[:PROMPT])
        got = torch.stack([engine.logits([token]) for token in model.ids[PROMPT:]])
        assert difference(got, model.wanted[PROMPT:]) < 2 * rounding
        assert difference(got, wanted[PROMPT:]) < 2 * rounding


@pytest.mark.slow
def test_a_session_of_a_thousand_turns_does_not_grow(tiny: Get, opened: Get) -> None:
    import psutil

    model = tiny("qwen3_moe")
    engine = opened(model.folder, slots=64)
    place(engine, "half")
    engine.experts.shares.path = "cooperative"
    draw = random.Random(3)
    process = psutil.Process()
    engine.reset()
    history: list[int] = []
    after = {}
    for turn in range(1, 1001):
        if len(history) > 900:
            del history[draw.randrange(20, 200) :]
        history += draw.choices(range(4096), k=draw.randrange(1, 40))
        first = engine.prefill(history).next_id
        history += [first, *engine.decode(first, 3, None)]
        after[turn] = process.memory_info().rss
    assert len(engine.cached_ids) <= engine.context
    assert after[1000] - after[200] < 8 << 20
    got = engine.logits(history[len(engine.cached_ids) :])
    assert difference(got, model.logits(history)[-1]) < TOLERANCE
