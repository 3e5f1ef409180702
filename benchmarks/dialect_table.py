"""What clients report for streams whose truth is known: ours, and the others that are installed.

For each client and stream the fake engine says what it sent: how many tokens, when the first and the last left. A
client is right when it counts whole answers and no broken one, when its TTFT is within ``TTFT_MS`` of the truth and
its TPOT within ``TPOT_SHARE`` of it, and when it counts the tokens; or when it says nothing where it can't know.
"""

import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import foreign_clients
import httpx
from foreign_clients import PROMPT, REQUESTS, TOKENS, VOCABULARY, ForeignError, Said, Task

from engines.base import EngineError, ForcedRequest, Reply
from engines.client import EngineClient
from engines.dialects.registry import dialect
from engines.fake.catalogue import faults, shapes
from engines.fake.shapes import TEXT_SHAPES
from engines.forcing.field import FieldForcing

PREFILL_MS, DECODE_MS = 50.0, 5.0
TTFT_MS, TPOT_SHARE = 15.0, 0.05
"""Wide: some clients need 10 ms of a busy machine. A wrong rule is off by many decode steps, or by the prefill; n - 1
where the first chunk holds three tokens is off by 10 %."""
DIALECTS = ("ostinato", "openai", "openai_chat", "llamacpp")
STALL_S = 1.0
FOREIGN_STREAMS = (
    "plain", "bundles", "empties", "pings", "split", "late_usage", "no_usage", "reasoning", "reasoning_content",
    "tool_calls", "http_500", "error_event", "error_data", "cut", "zero_tokens",
)  # fmt: skip
"""A run of another client takes up to half a minute, so these are asked by default."""
_FORCED_ONLY = {"fewer_tokens", "wrong_token"}
"""Faults for a client that forces tokens: to any other they are whole answers."""


@dataclass(frozen=True, slots=True)
class Truth:
    ttft_ms: float
    tpot_ms: float
    tokens: float


@contextlib.contextmanager
def fake(stream: str) -> Iterator[str]:
    command = [sys.executable, "-m", "engines.fake", "--prefill-ms-per-token", "0", "--fault", stream]
    command += ["--prefill-ms", str(PREFILL_MS), "--decode-ms", str(DECODE_MS), "--vocab-size", str(VOCABULARY)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[-1]
        finally:
            server.terminate()


def truth_of(url: str) -> Truth | None:
    """By the server's own clock, medians over the newest answers; None where no token left."""
    answers = httpx.get(f"{url}/stamps?last={REQUESTS}", trust_env=False).json()["answers"]
    sends = [(answer["arrived_ns"], answer["sent_ns"]) for answer in answers if answer["sent_ns"]]
    if not sends:
        return None
    steps = [
        (sent[-1] - sent[0]) / (len(sent) - sent.count(sent[0])) / 1e6 for _, sent in sends if sent[-1] > sent[0]
    ]
    return Truth(
        ttft_ms=statistics.median((sent[0] - arrived) / 1e6 for arrived, sent in sends),
        tpot_ms=statistics.median(steps) if steps else 0.0,
        tokens=statistics.median(len(sent) for _, sent in sends),
    )


def ours(url: str, name: str) -> Said:
    replies: list[Reply] = []

    async def ask() -> None:
        client = EngineClient(url, dialect(name), FieldForcing(), request_timeout_s=60, stall_timeout_s=STALL_S)
        async with client:
            for number in range(REQUESTS):
                request = ForcedRequest(prompt_ids=(number, *range(PROMPT - 1)), output_ids=tuple(range(TOKENS)))
                with contextlib.suppress(EngineError):
                    replies.append(await client.turn(request))

    asyncio.run(ask())
    return Said(
        succeeded=len(replies),
        ttft_ms=_median([(reply.chunks[0].t_ns - reply.sent_ns) / 1e6 for reply in replies]),
        tpot_ms=_median([step for reply in replies if (step := _tpot_ms(reply)) is not None]),
        tokens=_median([sum(chunk.n_tokens for chunk in reply.chunks) for reply in replies]),
    )


def _tpot_ms(reply: Reply) -> float | None:
    first, last = reply.chunks[0].t_ns, reply.chunks[-1].t_ns
    together = sum(chunk.n_tokens for chunk in reply.chunks if chunk.t_ns == first)
    return (last - first) / (TOKENS - together) / 1e6 if last > first else None


def _median(values: list[Any]) -> float | None:
    return statistics.median(values) if values else None


def verdict(said: Said, truth: Truth | None, *, whole: bool, verifiable: bool) -> str:
    """``right``, or what is wrong.

    Args:
        whole: the stream is a whole answer.
        verifiable: the stream carries the ids that ours needs.
    """
    if not whole:
        return "right" if not said.succeeded else "counts broken answers"
    if not said.succeeded:
        return "refuses whole answers" if verifiable else "right: refuses what it can't verify"
    assert truth is not None
    wrong = []
    if said.ttft_ms is None or abs(said.ttft_ms - truth.ttft_ms) > TTFT_MS:
        wrong.append("TTFT")
    if said.tpot_ms is not None and abs(said.tpot_ms / truth.tpot_ms - 1) > TPOT_SHARE:
        wrong.append("TPOT")
    if said.tokens is not None and round(said.tokens) != round(truth.tokens):
        wrong.append("tokens")
    return f"wrong {', '.join(wrong)}" if wrong else "right"


def _row(client: str, name: str, stream: str, said: Said | None, truth: Truth | None, judged: str) -> str:
    def pair(value: float | None, true: float | None) -> str:
        return (
            f"{'-' if value is None else format(value, '.1f'):>7} {'-' if true is None else format(true, '.1f'):>7}"
        )

    counted = "-" if said is None or said.succeeded is None else str(said.succeeded)
    shown = said or Said(None)
    ttft = pair(shown.ttft_ms, truth.ttft_ms if truth else None)
    tpot = pair(shown.tpot_ms, truth.tpot_ms if truth else None)
    tokens = pair(shown.tokens, truth.tokens if truth else None)
    return f"{client:<14} {name:<11} {stream:<18} {counted:>5}  {ttft}  {tpot}  {tokens}  {judged}"


def print_table(streams: list[str] | None) -> None:
    """Ask every client for every stream of its dialects; print a row each, as it is known."""
    print(f"{REQUESTS} requests of {TOKENS} tokens, prefill {PREFILL_MS:g} ms, decode {DECODE_MS:g} ms; each pair is")
    print(f"(reported, truth). Right: TTFT within {TTFT_MS:g} ms, TPOT within {TPOT_SHARE:.0%}, tokens exact.")
    titles = f"{'client':<14} {'dialect':<11} {'stream':<18} {'count':>5}"
    print(f"{titles}  {'TTFT ms':>15}  {'TPOT ms':>15}  {'tokens':>15}")
    for name in DIALECTS:
        for stream in shapes(name) | faults(name):
            if stream == "die" or (streams and stream not in streams):  # `die` ends the engine with all it knows
                continue
            with fake(stream) as url:
                said, truth = ours(url, name), truth_of(url)
            judged = verdict(said, truth, whole=stream in shapes(name), verifiable=stream not in TEXT_SHAPES)
            print(_row("ours", name, stream, said, truth, judged), flush=True)
    skipped = foreign_clients.absent()
    for client in [client for client in foreign_clients.FOREIGN if client not in skipped]:
        _foreign(client, streams or list(FOREIGN_STREAMS))
    for client in skipped:
        print(f"{client:<14} not asked: there is no `{client}` on PATH")


def _foreign(client: str, streams: list[str]) -> None:
    for name in foreign_clients.DIALECTS.get(client, ("openai", "openai_chat")):
        known = (shapes(name).keys() | faults(name).keys()) - _FORCED_ONLY
        for stream in [stream for stream in streams if stream in known]:
            with fake(stream) as url, tempfile.TemporaryDirectory() as folder:
                tokenizer = foreign_clients.write_tokenizer(Path(folder) / "tokenizer")
                task = Task(url, name == "openai_chat", tokenizer, Path(folder))
                try:
                    said, truth = foreign_clients.FOREIGN[client](task), truth_of(url)
                except ForeignError as error:
                    print(_row(client, name, stream, None, None, f"no result: {error}"), flush=True)
                    continue
            judged = verdict(said, truth, whole=stream in shapes(name), verifiable=True)
            print(_row(client, name, stream, said, truth, judged), flush=True)
