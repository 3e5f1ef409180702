"""What forcing costs a token: llama-server that decodes freely beside the same server forced to the same tokens.

    python benchmarks/forcing_cost.py --rounds 100 --tokens 60

Two servers run the same model, one with the forcing library (engine.forcing=shim) and one without. In each round the
free one answers a new prompt first; then both answer it again, in an order that alternates: free once more, and
forced to what the free one chose. So both compute the same tokens with the same cache, and only the choice differs.
``--one-token`` has the free server answer with a request a token, too.

    ms/token    predicted_ms / (tokens - 1), as the server says it; median and quartiles over rounds
    ratio       forced / free of one round, median over rounds with its 95 % bootstrap interval
    within noise: the interval holds 1
"""

import argparse
import os
import random
import statistics
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop
import yaml

from engines.base import Answer, ForcedRequest, Forcing, Reply
from engines.client import EngineClient
from engines.dialects.llamacpp import LlamaCpp
from engines.forcing.one_token import OneToken
from engines.forcing.shim import ShimForcing
from engines.forcing.simple import SimpleForcing
from engines.process import ProcessServer
from engines.settings import EngineSettings
from engines.synthetic_moe import SyntheticMoe, write
from workloads.sample_paths import TOKENIZER

CONF = Path(__file__).parents[1] / "conf" / "engine" / "llama_server.yaml"
_TIMEOUT_S = 120.0


class Free(SimpleForcing):
    """Takes whatever comes, as long as it is as much as was asked for."""

    def fields(self, request: ForcedRequest) -> dict[str, Any]:  # noqa: ARG002
        return {"ignore_eos": True}

    def verify(self, request: ForcedRequest, answer: Answer) -> tuple[str, None]:
        assert sum(chunk.n_tokens for chunk in answer.chunks) == len(request.output_ids)
        return "nothing", None


@asynccontextmanager
async def running(
    settings: EngineSettings, model: Path, folder: Path, force: Forcing
) -> AsyncIterator[ProcessServer]:
    server = ProcessServer(settings, model=model, folder=folder, environment=force.environment())
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def ms_a_token(reply: Reply) -> float:
    """By the server's clock, as a busy machine may let this client sleep through a whole turn; requests a token need
    the client for each, so there its clock tells."""
    if reply.verified_by == "prompts":
        return (reply.chunks[-1].t_ns - reply.chunks[0].t_ns) / (len(reply.chunks) - 1) / 1e6
    assert reply.report.decode_s is not None
    assert reply.report.generated_tokens is not None
    return reply.report.decode_s / (reply.report.generated_tokens - 1) * 1e3


async def measure(given: argparse.Namespace, model: Path, folder: Path) -> dict[str, list[float]]:
    """ms a token of each way, one entry a round."""
    conf: dict[str, Any] = yaml.safe_load(CONF.read_text())
    conf |= {"context": given.prompt + given.tokens + 64, "threads": given.threads, "binary": given.binary}
    settings = EngineSettings(**conf)
    free, shim = Free(), ShimForcing(settings, folder)
    draw = random.Random(given.seed)
    measured: dict[str, list[float]] = {"free": [], "forced": []} | ({"one_token": []} if given.one_token else {})
    async with AsyncExitStack() as stack:
        stack.callback(shim.close)
        plain = await stack.enter_async_context(running(settings, model, _made(folder / "free"), free))
        forced = await stack.enter_async_context(running(settings, model, _made(folder / "forced"), shim))
        ways = {"free": (plain, free), "forced": (forced, shim), "one_token": (plain, OneToken())}
        clients = {
            name: await stack.enter_async_context(
                EngineClient(server.url, LlamaCpp(), force, request_timeout_s=_TIMEOUT_S, stall_timeout_s=_TIMEOUT_S)
            )
            for name, (server, force) in ways.items()
        }
        for number in range(given.rounds + 1):
            prompt = tuple(draw.choices(range(300, 4096), k=given.prompt))
            asked = ForcedRequest(prompt_ids=prompt, output_ids=(0,) * given.tokens)
            chosen = _ids(await clients["free"].turn(asked), given.tokens)
            request = ForcedRequest(prompt_ids=prompt, output_ids=chosen)
            names = list(measured) if number % 2 else list(measured)[::-1]
            for name in names:
                await clients[name].turn(ForcedRequest(prompt_ids=prompt[:8], output_ids=chosen[:2]))  # forget
                reply = await clients[name].turn(request)
                if number:  # the first round warms up
                    measured[name].append(ms_a_token(reply))
    return measured


def _ids(reply: Reply, tokens: int) -> tuple[int, ...]:
    """What it chose; ids that its stream lost are ordinary ones."""
    ids = [id_ for chunk in reply.chunks for id_ in (*chunk.ids, *(700,) * (chunk.n_tokens - len(chunk.ids)))]
    assert len(ids) == tokens
    return tuple(ids)


def interval(ratios: list[float], draw: random.Random, times: int = 5000) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the median."""
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(times))
    return medians[int(0.025 * times)], medians[int(0.975 * times) - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=60, help="a turn (default %(default)s)")
    parser.add_argument("--prompt", type=int, default=200, help="tokens of prompt (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--binary", default="llama-server")
    parser.add_argument("--model", type=Path, help="a GGUF file; else a random mixture of experts is written")
    parser.add_argument("--one-token", action="store_true", help="measure one request a token, too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = given.model
        if model is None:
            model = folder / "model.gguf"
            write(SyntheticMoe(), tokenizer=TOKENIZER, safetensors=None, gguf=model)
        load = os.getloadavg()[0]
        measured = uvloop.run(measure(given, model, folder))
    print(f"{os.cpu_count()} CPUs, load {load:.1f}, {given.rounds} rounds of {given.tokens} tokens")
    print(f"{'':>10} {'ms/token':>9} {'quartiles':>17} {'ratio to free':>14} {'95 %':>17}")
    draw = random.Random(given.seed)
    free = measured["free"]
    for name, values in measured.items():
        low, middle, high = statistics.quantiles(values, n=4)
        ratios = [value / beside for value, beside in zip(values, free, strict=True)]
        left, right = interval(ratios, draw)
        spread = f"{low:8.4f} {high:8.4f}"
        print(f"{name:>10} {middle:9.4f} {spread} {statistics.median(ratios):14.4f} {left:8.4f} {right:8.4f}")
        if name == "forced":
            verdict = "within noise" if left <= 1 <= right else "NOT within noise"
            print(f"{'':>10} {verdict}: {statistics.median(values) - statistics.median(free):+.4f} ms a token")


if __name__ == "__main__":
    main()
