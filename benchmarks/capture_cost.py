"""What `prepare capture` adds to each chunk of a stream: the same server with the proxy before it and without.

    python benchmarks/capture_cost.py --streams 1 4 16 --prompt-kb 200

The server (``engines.fake``, a process of its own, as is the proxy) reads the clock right before each send, the
client reads the same clock when the chunk came. Direct and proxied answers take turns, round by round. Each request
carries a conversation that grows by a turn a round, so the proxy has a long prompt to read, group and write when an
answer ends, which is while other streams go on.

    delay    client's reading of a chunk - server's send of it, p50 and p99 over chunks
    added    difference of the two; ratio: quotient of the two
    TTFT     (client: first chunk - sent) - (server: first send - arrival), p50: what connecting and sending cost
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvloop

from engines.base import ForcedRequest
from engines.client import EngineClient
from engines.dialects.registry import dialect
from engines.forcing.field import FieldForcing

LIMIT_MS = 0.3
_TIMEOUT_S = 60.0


class WithConversation(FieldForcing):
    """Adds the messages that a chat client would send; the fake engine passes over them."""

    def __init__(self, kilobytes: int) -> None:
        super().__init__()
        self._message = "word " * 400
        self._count = kilobytes // 2

    def fields(self, request: ForcedRequest) -> Mapping[str, Any]:
        stream, number = request.prompt_ids[:2]
        messages = [
            {"role": "assistant" if k % 2 else "user", "content": f"{stream} {k} {self._message}"}
            for k in range(self._count + 2 * number)
        ]
        return {**super().fields(request), "messages": messages}


@dataclass
class Observed:
    delay_ms: list[float] = field(default_factory=list)
    ttft_ms: list[float] = field(default_factory=list)

    def quantiles(self) -> tuple[float, float, float]:
        delays = statistics.quantiles(self.delay_ms, n=100, method="inclusive")
        return delays[49], delays[98], statistics.median(self.ttft_ms)


async def measure(urls: Mapping[str, str], streams: int, given: argparse.Namespace) -> dict[str, Observed]:
    """Let both ways take turns for ``given.rounds`` rounds of ``streams`` answers at once."""
    observed = {name: Observed() for name in urls}
    forcing = WithConversation(given.prompt_kb)
    async with AsyncExitStack() as stack:
        control = await stack.enter_async_context(httpx.AsyncClient(base_url=urls["direct"], trust_env=False))
        clients = {
            name: await stack.enter_async_context(
                EngineClient(
                    url, dialect("ostinato"), forcing, request_timeout_s=_TIMEOUT_S, stall_timeout_s=_TIMEOUT_S
                )
            )
            for name, url in urls.items()
        }
        for number in range(given.rounds + 1):
            for name, client in clients.items():
                requests = [
                    ForcedRequest(prompt_ids=(stream, number, 0), output_ids=tuple(range(given.tokens)))
                    for stream in range(streams)
                ]

                async def later(
                    k: int, request: ForcedRequest, client: EngineClient = client
                ) -> tuple[int, tuple[int, ...]]:
                    await asyncio.sleep(k * given.apart_ms / 1e3)
                    reply = await client.turn(request)
                    return reply.sent_ns, tuple(chunk.t_ns for chunk in reply.chunks)

                timings = await asyncio.gather(*(later(k, request) for k, request in enumerate(requests)))
                if number == 0:  # opens connections, warms caches
                    continue
                answers = (await control.get(f"/stamps?last={streams}")).json()["answers"]
                by_start = {tuple(answer["prompt_start"]): answer for answer in answers}
                for request, (sent_ns, came_ns) in zip(requests, timings, strict=True):
                    server = by_start[request.prompt_ids[:2]]
                    sends = server["sent_ns"]
                    observed[name].delay_ms += [(b - a) / 1e6 for a, b in zip(sends, came_ns, strict=True)]
                    observed[name].ttft_ms.append(((came_ns[0] - sent_ns) - (sends[0] - server["arrived_ns"])) / 1e6)
    return observed


@contextmanager
def started(*command: str) -> Any:
    """Run a module that says its URL in its first line; yields the process and that URL."""
    with subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            yield process, next(word for word in line.split() if word.startswith("http"))
        finally:
            process.terminate()
            print(process.stdout.read().strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=8, help="answers a stream and way (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=100, help="chunks an answer (default %(default)s)")
    parser.add_argument("--prompt-kb", type=int, default=200, help="size of the first request (default %(default)s)")
    parser.add_argument("--decode-ms", type=float, default=10.0, help="between chunks (default %(default)s)")
    parser.add_argument(
        "--apart-ms", type=float, default=10.63, help="between the streams' starts: no two send at once (%(default)s)"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, started("engines.fake", f"--decode-ms={given.decode_ms}") as fake:
        out = Path(folder) / "calls.jsonl"
        with started("workloads.cli", "capture", f"upstream={fake[1]}", f"out={out}", "port=0") as proxy:
            urls = {"direct": fake[1], "proxied": proxy[1].removesuffix("/v1")}
            print(
                f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {given.rounds} rounds, {given.tokens} chunks"
            )
            print(f"{'streams':>7} {'':>7}  {'p50 ms':>8} {'p99 ms':>8} {'TTFT ms':>8}")
            for streams in given.streams:
                direct, proxied = (one.quantiles() for one in uvloop.run(measure(urls, streams, given)).values())
                added = [b - a for a, b in zip(direct, proxied, strict=True)]
                ratio = [b / a for a, b in zip(direct, proxied, strict=True)]
                for name, row in (("direct", direct), ("proxied", proxied), ("added", added), ("ratio", ratio)):
                    print(f"{streams:7} {name:>7}  " + " ".join(f"{value:8.3f}" for value in row), flush=True)
                kept = "kept" if added[0] < LIMIT_MS else "NOT kept"
                print(f"{'':7} at most {LIMIT_MS} ms added to the median chunk: {kept}")


if __name__ == "__main__":
    main()
