"""Turns for an hour against an Ostinato server: does its memory stay, does its step stay as fast as it was?

    python benchmarks/steady.py --seconds 300
    python benchmarks/steady.py --seconds 3600 --model models/moe-24 -- --vram-budget 15GiB --residency residency.json

The words after ``--`` go to ``python -m engines.ostinato serve``; without ``--model`` a small random model is written
and removed at the end. One session of forced turns, always the same, is replayed over and over (the prompts of a
session grow, the next one starts anew), so that the first and the last tenth of the time did the same work. Prints
the server's resident memory at the start, at the end and by the hour (least squares, from the first tenth on), the
GPU's where ``nvidia-smi`` is, how far the median step of the last tenth lies from the first's, with an interval
(2,000 resamples of each tenth's sessions), and the quickest session of each fifth, which other programs slow down
least. Exits with 1 when a token was another, when memory grew by more than 1 % and 16 MB, or when the step's whole
interval lies beyond 1 %.
"""

import argparse
import http.client
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import psutil

from engines.synthetic_moe import SyntheticMoe, write
from workloads.sample_paths import TOKENIZER

DRIFT, GROWTH, GROWTH_MB = 0.01, 0.01, 16.0
START_S = 1800.0
VOCABULARY = 4000
"""Ids below it are in every model's."""


@dataclass(frozen=True, slots=True)
class Turn:
    prompt: list[int]
    output: list[int]


@dataclass(frozen=True, slots=True)
class Replayed:
    """One replay of the session."""

    ended_s: float
    """Since the first one began."""
    step_ms: float
    """Between a turn's first and last token, over all turns."""
    wrong: int
    """Tokens that were not the forced ones."""


@dataclass(frozen=True, slots=True)
class Memory:
    at_s: float
    rss_mb: float
    files: int


def session(turns: int, vocabulary: int, draw: random.Random) -> list[Turn]:
    """Turns whose prompts grow by what was said and by 20 to 60 new tokens."""
    made: list[Turn] = []
    held: list[int] = []
    for _ in range(turns):
        held = held + draw.choices(range(vocabulary), k=draw.randint(20, 60))
        output = draw.choices(range(vocabulary), k=draw.randint(24, 40))
        made.append(Turn(held, output))
        held = held + output
    return made


class Watch(threading.Thread):
    """Reads a process's memory every second."""

    def __init__(self, pid: int, began: float) -> None:
        super().__init__(daemon=True)
        self._process, self._began = psutil.Process(pid), began
        self._over = threading.Event()
        self.seen: list[Memory] = []

    def run(self) -> None:
        while not self._over.wait(1.0):
            self.look()

    def look(self) -> None:
        mb = self._process.memory_info().rss / 1e6
        self.seen.append(Memory(time.monotonic() - self._began, mb, self._process.num_fds()))

    def end(self) -> None:
        self._over.set()
        self.join()


def serve(words: Sequence[str], log: IO[str]) -> tuple["subprocess.Popen[str]", str, int]:
    """Start a server; return it with its host and port."""
    command = [sys.executable, "-m", "engines.ostinato", "serve", "--port", "0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    deadline = time.monotonic() + START_S
    for line in process.stdout:
        log.write(line)
        if found := re.search(r"http://([\w.]+):(\d+)", line):
            threading.Thread(target=_drain, args=(process.stdout, log), daemon=True).start()
            return process, found[1], int(found[2])
        if time.monotonic() > deadline:
            break
    process.kill()
    log.flush()
    sys.exit(f"the server did not start: {Path(log.name).read_text()[-2000:]}")


def _drain(lines: IO[str], log: IO[str]) -> None:
    for line in lines:
        log.write(line)


def replay(host: str, port: int, turns: Sequence[Turn]) -> tuple[float, int]:
    """(milliseconds a step, tokens that were not the forced ones)."""
    connection = http.client.HTTPConnection(host, port, timeout=600)
    took_s, steps, wrong = 0.0, 0, 0
    for turn in turns:
        body = {
            "prompt": turn.prompt, "max_tokens": len(turn.output), "forced_tokens": turn.output, "temperature": 0,
            "stream": True, "return_token_ids": True,
        }  # fmt: skip
        connection.request("POST", "/v1/completions", json.dumps(body))
        answer = connection.getresponse()
        if answer.status != 200:
            sys.exit(f"the server answered {answer.status}: {answer.read()[:500]!r}")
        stamps, lines = [], []
        while line := answer.readline():
            if line.startswith(b"data: {") and b'"token_ids": [' in line:
                stamps.append(time.perf_counter())
                lines.append(line)
        ids = [i for line in lines for i in json.loads(line[6:])["choices"][0].get("token_ids") or []]
        wrong += sum(a != b for a, b in zip(ids, turn.output, strict=False)) + abs(len(ids) - len(turn.output))
        took_s += stamps[len(turn.output) - 1] - stamps[0]
        steps += len(turn.output) - 1
    connection.close()
    return took_s * 1e3 / steps, wrong


def tenths(replayed: Sequence[Replayed]) -> tuple[list[float], list[float]]:
    """The steps of the sessions that ended in the first and in the last tenth of the time."""
    tenth = replayed[-1].ended_s / 10
    early = [one.step_ms for one in replayed if one.ended_s <= tenth] or [replayed[0].step_ms]
    return early, [one.step_ms for one in replayed if one.ended_s > 9 * tenth]


def drift(early: Sequence[float], late: Sequence[float], rng: np.random.Generator) -> tuple[float, float, float]:
    """The late median step against the early one, less 1, and the 95 % interval's ends."""
    before, after = (np.median(rng.choice(part, (2000, len(part))), 1) for part in (early, late))
    low, high = np.percentile(after / before - 1, [2.5, 97.5])
    return float(np.median(late) / np.median(early) - 1), float(low), float(high)


def gpu_mb() -> str | None:
    """Memory in use on each GPU, as the driver says."""
    if shutil.which("nvidia-smi") is None:
        return None
    words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"]
    return ", ".join(subprocess.run(words, capture_output=True, text=True).stdout.split("\n")).strip(", ") or None


def judge(replayed: Sequence[Replayed], seen: Sequence[Memory]) -> list[str]:
    """Print the figures; what is wrong with them."""
    end = replayed[-1].ended_s
    settled = [memory for memory in seen if end / 10 <= memory.at_s <= end] or list(seen)
    at, mb = (np.array([getattr(memory, name) for memory in settled]) for name in ("at_s", "rss_mb"))
    slope = float(np.polyfit(at, mb, 1)[0]) * 3600 if len(at) > 1 else 0.0
    start_mb, end_mb = float(np.median(mb[: max(1, len(mb) // 9)])), float(np.median(mb[-max(1, len(mb) // 9) :]))
    print(f"memory {seen[0].rss_mb:.1f} MB before the first turn, {start_mb:.1f} MB in the second tenth of the time, "
          f"{end_mb:.1f} MB in the last; {slope:+.2f} MB an hour from the first tenth on")  # fmt: skip
    tenths_mb = (
        np.median([one.rss_mb for one in part]) for part in np.array_split(np.array(seen, object), 10) if len(part)
    )
    print("memory by tenths of the time, MB:", *(f"{value:.1f}" for value in tenths_mb))
    print(f"open files {settled[0].files} early, {settled[-1].files} late")
    early, late = tenths(replayed)
    middle, low, high = drift(early, late, np.random.default_rng(0))
    print(f"median step {np.median(early):.3f} ms in the first tenth, {np.median(late):.3f} ms in the last: "
          f"{middle:+.2%} (95 % {low:+.2%} to {high:+.2%})")  # fmt: skip
    fifths = (part for part in np.array_split([one.step_ms for one in replayed], 5) if len(part))
    print("step of the quickest session of each fifth, ms:", *(f"{min(part):.3f}" for part in fifths))
    wrong = sum(one.wrong for one in replayed)
    problems = [f"{wrong} tokens were not the forced ones"] if wrong else []
    if end_mb - start_mb > max(GROWTH_MB, GROWTH * start_mb):
        problems.append(f"memory grew by {end_mb - start_mb:.1f} MB")
    if low > DRIFT or high < -DRIFT:
        problems.append(f"the step drifted by {middle:+.2%}")
    elif low < -DRIFT or high > DRIFT:
        print("too noisy to say that the step stayed within 1 %: run longer, or with nothing beside it")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0, help="of turns (default %(default)s)")
    parser.add_argument("--model", type=Path, help="model folder or GGUF file (none: a small random one)")
    parser.add_argument("--turns", type=int, default=12, help="of a session (default %(default)s)")
    parser.add_argument("--log", type=Path, help="where the server's output goes (none: nowhere)")
    parser.add_argument("words", nargs="*", help="for the server, after --")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        model = given.model
        if model is None:
            model = folder / "model"
            write(SyntheticMoe(), tokenizer=TOKENIZER, safetensors=model, gguf=None)
        log = stack.enter_context((given.log or folder / "server.log").open("w"))
        process, host, port = serve(["--model", str(model), *given.words], log)
        stack.callback(process.kill)
        turns = session(given.turns, VOCABULARY, random.Random(0))
        tokens = sum(len(turn.output) for turn in turns)
        print(
            f"a session: {len(turns)} turns, {tokens} output tokens, longest prompt {len(turns[-1].prompt)}",
            flush=True,
        )
        replay(host, port, turns)  # the first one sets things up
        before = gpu_mb()
        began = time.monotonic()
        watch = Watch(process.pid, began)
        watch.look()
        watch.start()
        replayed: list[Replayed] = []
        while time.monotonic() - began < given.seconds or not replayed:
            step_ms, wrong = replay(host, port, turns)
            replayed.append(Replayed(time.monotonic() - began, step_ms, wrong))
        watch.end()
        after = gpu_mb()
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=60)
    count = len(replayed) * len(turns)
    took_s = replayed[-1].ended_s
    print(f"{count:,} turns, {len(replayed)} sessions in {took_s:.0f} s; every token was forced and looked at")
    if before is not None:
        print(f"GPU memory {before} before, {after} after")
    problems = judge(replayed, watch.seen)
    if code != 0:
        problems.append(f"the server ended with {code}")
    print("\n".join(problems) if problems else "nothing unsteady was found")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
