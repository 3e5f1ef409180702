"""The client's own error: what clients report for the same server, which stamps its own sends.

    python benchmarks/client_error.py --streams 1 4 16 64

The server (``engines.fake``, a process of its own) reads the clock right before each send, the client reads the same
clock when it says that a token came. With a perfect client both agree but for the kernel's way through the loopback.

    TTFT bias    (client: first token - sent) - (server: first send - arrival), median and p99 over answers
    TPOT bias    client TPOT - server TPOT, TPOT = (last - first) / (n - 1)
    token delay  client's reading of a token - server's send of it, p50 and p99 over tokens
    CPU          process time of this client a token, parsing and verifying after the stream's end included
    TTFT-raw     TTFT bias beyond that of the raw client; target: 0.1 ms at 1 stream, 0.3 ms at 16
    CPU/raw      CPU a token over that of the raw client; target: 1.3

Each is the median over rounds. Clients take turns, round by round, on one event loop:

    ours   EngineClient: httpx over stamped sockets
    raw    asyncio.open_connection, a reading after each read; HTTP and events parsed after the end. The floor
    httpx  httpx.AsyncClient with aiter_lines(), JSON parsed and the clock read line by line, as many tools do

Then the other benchmark clients that are on PATH run, each as one command with as many requests in flight as there
are streams, as many and as long as the others' of all rounds. They report no stamps and their requests no name to
pair by, so their biases are between distributions: the median (p99) that they report less that of the server's stamps
of just their answers. CPU is that of all their processes, start-up and report included: it can't be told apart. They
start streams as they like, mostly all at once and on new connections; ``--apart-ms 0`` has ours, raw and httpx start
all at once too.

    python benchmarks/client_error.py --dialects [STREAM ...]

prints instead what ours and the other clients on PATH report for every dialect, shape and fault of stream.
"""

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import dialect_table
import foreign_clients
import httpx
import orjson
import uvloop
from foreign_clients import ForeignError, ForeignRun

from engines import sse
from engines.base import Answer, Chunk, Dialect, ForcedRequest, ServerReport
from engines.client import EngineClient
from engines.dialects.registry import dialect
from engines.forcing.field import FieldForcing

_TIMEOUT_S = 60.0
_WARM_UP = 100_000
"""Second id of the prompts whose answers are not measured."""
_CONTENT_TYPE = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


@dataclass(frozen=True, slots=True)
class Timing:
    """What a client says of one answer."""

    sent_ns: int
    token_ns: tuple[int, ...]


Turn = Callable[[ForcedRequest], Awaitable[Timing]]


def _timing(sent_ns: int, chunks: Sequence[Chunk]) -> Timing:
    return Timing(sent_ns, tuple(chunk.t_ns for chunk in chunks for _ in range(chunk.n_tokens)))


@asynccontextmanager
async def ours(url: str, wire: Dialect, _streams: int) -> AsyncIterator[Turn]:
    client = EngineClient(url, wire, FieldForcing(), request_timeout_s=_TIMEOUT_S, stall_timeout_s=_TIMEOUT_S)

    async def turn(request: ForcedRequest) -> Timing:
        reply = await client.turn(request)
        return _timing(reply.sent_ns, reply.chunks)

    async with client:
        yield turn


@asynccontextmanager
async def raw(url: str, wire: Dialect, streams: int) -> AsyncIterator[Turn]:
    address = httpx.URL(url)
    forcing = FieldForcing()
    idle = [await asyncio.open_connection(address.host, address.port) for _ in range(streams)]
    everything = list(idle)

    async def turn(request: ForcedRequest) -> Timing:
        reader, writer = idle.pop()
        body = orjson.dumps({**wire.body(request), **forcing.fields(request)})
        head = f"POST {wire.path} HTTP/1.1\r\nHost: {address.host}\r\nContent-Type: application/json\r\n"
        message = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        reads: list[tuple[int, bytes]] = []
        sent_ns = time.perf_counter_ns()
        writer.write(message)
        while not (reads and reads[-1][1].endswith(b"0\r\n\r\n")):
            data = await reader.read(65536)
            reads.append((time.perf_counter_ns(), data))
            assert data, "the fake engine closed the connection"
        idle.append((reader, writer))
        answer = wire.parse(sse.parse(_unchunked(reads)))
        forcing.verify(request, answer)
        return _timing(sent_ns, answer.chunks)

    yield turn
    for _, writer in everything:
        writer.close()


def _unchunked(reads: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The body without HTTP's chunk lines. The fake engine writes head and chunks whole, so none spans two reads."""
    (head_ns, head), *rest = reads
    body = [(head_ns, head.partition(b"\r\n\r\n")[2]), *rest]
    return [(t_ns, re.sub(rb"(?:^|\r\n)[0-9a-f]+\r\n", b"", data).removesuffix(b"\r\n")) for t_ns, data in body]


@asynccontextmanager
async def plain_httpx(url: str, wire: Dialect, _streams: int) -> AsyncIterator[Turn]:
    forcing = FieldForcing()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=_TIMEOUT_S, trust_env=False) as client:

        async def turn(request: ForcedRequest) -> Timing:
            body = orjson.dumps({**wire.body(request), **forcing.fields(request)})
            chunks = []
            sent_ns = time.perf_counter_ns()
            async with client.stream("POST", wire.path, content=body, headers=_CONTENT_TYPE) as response:
                async for line in response.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    t_ns = time.perf_counter_ns()
                    for choice in orjson.loads(line[6:])["choices"]:
                        if ids := tuple(choice["token_ids"]):
                            chunks.append(Chunk(t_ns=t_ns, n_tokens=len(ids), ids=ids))
            forcing.verify(request, Answer(chunks=tuple(chunks), report=ServerReport()))
            return _timing(sent_ns, chunks)

        yield turn


CLIENTS = {"ours": ours, "raw": raw, "httpx": plain_httpx}


@dataclass(frozen=True, slots=True)
class Round:
    """One client's answers of one round, some at once."""

    ttft_bias_ms: tuple[float, ...]
    tpot_bias_us: tuple[float, ...]
    delay_ms: tuple[float, ...]
    cpu_us: float
    """A token."""

    @property
    def ttft_ms(self) -> float:
        return statistics.median(self.ttft_bias_ms)


def observed(timings: Sequence[Timing], servers: Sequence[dict[str, Any]], cpu_s: float) -> Round:
    ttft, tpot, delays = [], [], []
    for timing, server in zip(timings, servers, strict=True):
        sends: list[int] = server["sent_ns"]
        assert len(sends) == len(timing.token_ns)
        first, last = timing.token_ns[0], timing.token_ns[-1]
        ttft.append(((first - timing.sent_ns) - (sends[0] - server["arrived_ns"])) / 1e6)
        tpot.append(((last - first) - (sends[-1] - sends[0])) / (len(sends) - 1) / 1e3)
        delays += [(came - sent) / 1e6 for came, sent in zip(timing.token_ns, sends, strict=True)]
    return Round(tuple(ttft), tuple(tpot), tuple(delays), cpu_s / len(delays) * 1e6)


def row(rounds: Sequence[Round], floor: Sequence[Round] | None) -> str:
    """Medians over rounds; beside the raw client's the same rounds are compared one by one."""
    ttft = [bias for one in rounds for bias in one.ttft_bias_ms]
    p99 = statistics.quantiles(ttft, n=100, method="inclusive")[98]
    delays = [statistics.quantiles(one.delay_ms, n=100, method="inclusive") for one in rounds]
    text = (
        f"{statistics.median(one.ttft_ms for one in rounds):9.3f} {p99:9.3f} "
        f"{statistics.median(statistics.median(one.tpot_bias_us) for one in rounds):9.2f} "
        f"{statistics.median(delay[49] for delay in delays):9.3f} "
        f"{statistics.median(delay[98] for delay in delays):9.3f} "
        f"{statistics.median(one.cpu_us for one in rounds):9.1f}"
    )
    if floor is None:
        return text
    beyond_ms = statistics.median(mine.ttft_ms - raw.ttft_ms for mine, raw in zip(rounds, floor, strict=True))
    times = statistics.median(mine.cpu_us / raw.cpu_us for mine, raw in zip(rounds, floor, strict=True))
    return f"{text} {beyond_ms:+9.3f} {times:9.2f}"


HEADER = (
    f"{'streams':>7} {'client':>14} {'TTFT bias':>9} {'p99':>9} {'TPOT bias':>9} {'delay p50':>9} {'delay p99':>9}"
    f" {'CPU/token':>9} {'TTFT-raw':>9} {'CPU/raw':>9}\n"
    f"{'':>7} {'':>14} {'ms':>9} {'ms':>9} {'µs':>9} {'ms':>9} {'ms':>9} {'µs':>9} {'ms':>9} {'times':>9}"
)


def foreign_row(run: ForeignRun, floor: Sequence[Round] | None) -> str:
    """The columns of ``row``; ``-`` where the client reports nothing to compare."""
    ttft = [(server["sent_ns"][0] - server["arrived_ns"]) / 1e6 for server in run.servers]
    tpot = [
        (server["sent_ns"][-1] - server["sent_ns"][0]) / (len(server["sent_ns"]) - 1) / 1e6 for server in run.servers
    ]
    ttft_ms = _beyond(run.said.ttft_ms, statistics.median(ttft))
    p99_ms = _beyond(run.said.ttft_p99_ms, foreign_clients.p99(ttft))
    tpot_ms = _beyond(run.said.tpot_ms, statistics.median(tpot))
    tpot_us = None if tpot_ms is None else tpot_ms * 1e3
    text = (
        f"{_cell(ttft_ms, '.3f')} {_cell(p99_ms, '.3f')} {_cell(tpot_us, '.2f')} {'-':>9} {'-':>9} {run.cpu_us:9.1f}"
    )
    if floor is not None:
        text += f" {_cell(_beyond(ttft_ms, statistics.median(raw.ttft_ms for raw in floor)), '+.3f')}"
    counted = "" if len(run.servers) == run.asked else f", counts {len(run.servers)} of {run.asked} answers"
    return f"{text} with start-up{counted}"


def _beyond(value: float | None, floor: float) -> float | None:
    return None if value is None else value - floor


def _cell(value: float | None, form: str) -> str:
    return f"{'-' if value is None else format(value, form):>9}"


def print_foreign(
    names: Sequence[str], url: str, streams: int, given: argparse.Namespace, floor: Sequence[Round] | None
) -> None:
    """Run each of the clients that is installed and print its row, as it is known; or say how to install it."""
    absent = foreign_clients.absent()
    for name in names:
        if name in absent:
            text = f"not on PATH: `pip install {name}` in an environment of its own, its bin at the end of PATH"
        else:
            try:
                run = foreign_clients.run(
                    name,
                    url,
                    streams=streams,
                    requests=streams * given.rounds,
                    tokens=given.tokens,
                    prompt=given.prompt,
                )
                text = foreign_row(run, floor)
            except ForeignError as error:
                text = f"no result: {error}"
        print(f"{streams:7} {name:>14} {text}", flush=True)


async def _later(turn: Turn, request: ForcedRequest, wait_s: float) -> Timing:
    await asyncio.sleep(wait_s)
    return await turn(request)


def _requests(streams: int, number: int, prompt: int, tokens: int) -> list[ForcedRequest]:
    return [
        ForcedRequest(prompt_ids=(stream, number, *range(prompt)), output_ids=tuple(range(tokens)))
        for stream in range(streams)
    ]


async def measure(
    url: str, streams: int, clients: Sequence[str], given: argparse.Namespace
) -> dict[str, list[Round]]:
    """Let the ``clients`` take turns for ``given.rounds`` rounds of ``streams`` answers at once.

    In every other round the clients go in the opposite order, so that what the machine does besides hits all of them.
    Before a client is measured, it opens its connections and fills its caches with answers of one token.
    """
    wire = dialect("ostinato")
    rounds: dict[str, list[Round]] = {name: [] for name in clients}
    async with AsyncExitStack() as stack:
        control = await stack.enter_async_context(
            httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, trust_env=False)
        )
        turns = {name: await stack.enter_async_context(CLIENTS[name](url, wire, streams)) for name in clients}
        for number in range(given.rounds):
            for name in clients if number % 2 else reversed(clients):
                turn = turns[name]
                await asyncio.gather(*map(turn, _requests(streams, _WARM_UP, 2, 1)))
                requests = _requests(streams, number, given.prompt, given.tokens)
                began_s = time.process_time()
                timings = await asyncio.gather(
                    *(_later(turn, request, k * given.apart_ms / 1e3) for k, request in enumerate(requests))
                )
                cpu_s = time.process_time() - began_s
                answers = (await control.get(f"/stamps?last={streams}")).json()["answers"]
                by_start = {tuple(answer["prompt_start"]): answer for answer in answers}
                servers = [by_start[request.prompt_ids[:2]] for request in requests]
                rounds[name].append(observed(timings, servers, cpu_s))
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    everyone = [*CLIENTS, *foreign_clients.FOREIGN]
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument(
        "--clients",
        nargs="+",
        choices=everyone,
        default=everyone,
        metavar="CLIENT",
        help=f"of {', '.join(everyone)} (default: all)",
    )
    parser.add_argument("--rounds", type=int, default=9, help="answers a stream and client (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens an answer (default %(default)s)")
    parser.add_argument("--prompt", type=int, default=500, help="tokens a prompt (default %(default)s)")
    parser.add_argument("--prefill-ms", type=float, default=50.0)
    parser.add_argument("--decode-ms", type=float, default=10.0)
    parser.add_argument(
        "--apart-ms",
        type=float,
        default=5.0,
        help="between the streams' starts: at once, each would measure the others' preparation (default %(default)s)",
    )
    parser.add_argument("--loop", choices=["uvloop", "asyncio"], default="uvloop")
    parser.add_argument("--dialects", nargs="*", metavar="STREAM", help="the table of streams; some or all of them")
    given = parser.parse_args()
    if given.dialects is not None:
        dialect_table.print_table(given.dialects)
        return
    inside = [name for name in given.clients if name in CLIENTS]
    outside = [name for name in given.clients if name not in CLIENTS]
    command = [sys.executable, "-m", "engines.fake", "--prefill-ms-per-token", "0"]
    command += ["--prefill-ms", str(given.prefill_ms), "--decode-ms", str(given.decode_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().split()[-1]
            print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {given.loop}, {given.rounds} rounds of")
            print(f"{given.tokens} tokens, prefill {given.prefill_ms} ms, decode {given.decode_ms} ms\n{HEADER}")
            for streams in given.streams:
                run = uvloop.run if given.loop == "uvloop" else asyncio.run
                rounds = run(measure(url, streams, inside, given))
                for name, mine in rounds.items():
                    print(f"{streams:7} {name:>14} {row(mine, rounds.get('raw'))}", flush=True)
                print_foreign(outside, url, streams, given, rounds.get("raw"))
        finally:
            server.terminate()
        print(server.stdout.read().strip())


if __name__ == "__main__":
    main()
