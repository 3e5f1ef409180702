"""Turns for an hour against an Ostinato server: does its memory stay, does its step stay as fast as it was?

    python benchmarks/steady.py --seconds 300
    python benchmarks/steady.py --seconds 3600 --model models/moe-24 -- --vram-budget 15GiB --residency residency.json

The words after ``--`` go to ``python -m engines.ostinato serve``; without ``--model`` a small random model is
written and removed at the end. One session of forced turns, always the same, is replayed over and over (the prompts
of a session grow, the next one starts anew). What else runs on a machine moves its steps by more than 1 % from one
quarter of an hour to the next, so a second server, started with the first and idle in between, is the control (the
model lies in memory twice): in the first and the last quarter of the time every turn goes to both, in changing
order, and what drifts is the server's step in the twin's steps. Prints the server's resident memory at the start,
at the end and by the hour (least squares, from the first tenth on), the GPUs' where ``nvidia-smi`` is, and how far
the median of the last quarter's sessions lies from the first's, with an interval (2,000 resamples of each quarter's
sessions). Exits with 1 when a token was another, when memory grew by more than 1 % and 16 MB, or when the step's
whole interval lies beyond 1 %.
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
PAIRED = 0.25
"""Of the time, at each end, with the twin beside it."""
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
    twin_ms: float | None = None
    """The twin's step, turn by turn beside it; None: it was idle."""


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


def answer(connection: http.client.HTTPConnection, turn: Turn) -> tuple[float, int]:
    """(seconds from the first token to the last, tokens that were not the forced ones)."""
    body = {
        "prompt": turn.prompt, "max_tokens": len(turn.output), "forced_tokens": turn.output, "temperature": 0,
        "stream": True, "return_token_ids": True,
    }  # fmt: skip
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    if response.status != 200:
        sys.exit(f"the server answered {response.status}: {response.read()[:500]!r}")
    stamps, lines = [], []
    while line := response.readline():
        if line.startswith(b"data: {") and b'"token_ids": [' in line:
            stamps.append(time.perf_counter())
            lines.append(line)
    ids = [i for line in lines for i in json.loads(line[6:])["choices"][0].get("token_ids") or []]
    wrong = sum(a != b for a, b in zip(ids, turn.output, strict=False)) + abs(len(ids) - len(turn.output))
    return stamps[len(turn.output) - 1] - stamps[0], wrong


def replay(servers: Sequence[tuple[str, int]], turns: Sequence[Turn]) -> list[tuple[float, int]]:
    """For each server (milliseconds a step, tokens that were not the forced ones); they take turns at each turn."""
    connections = [http.client.HTTPConnection(host, port, timeout=600) for host, port in servers]
    took_s, wrong = [0.0] * len(servers), [0] * len(servers)
    for i, turn in enumerate(turns):
        for k in range(len(servers)) if i % 2 == 0 else reversed(range(len(servers))):
            seconds, others = answer(connections[k], turn)
            took_s[k] += seconds
            wrong[k] += others
    for connection in connections:
        connection.close()
    steps = sum(len(turn.output) - 1 for turn in turns)
    return [(seconds * 1e3 / steps, others) for seconds, others in zip(took_s, wrong, strict=True)]


def quarters(replayed: Sequence[Replayed]) -> tuple[list[Replayed], list[Replayed]]:
    """The sessions with the twin beside them, of the first and of the last part of the time."""
    paired = [one for one in replayed if one.twin_ms is not None]
    middle = replayed[-1].ended_s / 2
    early = [one for one in paired if one.ended_s <= middle] or paired[:1]
    return early, paired[len(early) :]


def in_twins(replayed: Sequence[Replayed]) -> list[float]:
    """Each session's step in steps of the twin."""
    return [one.step_ms / one.twin_ms for one in replayed if one.twin_ms is not None]


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
    early, late = quarters(replayed)
    middle, low, high = drift(in_twins(early), in_twins(late), np.random.default_rng(0))
    for when, part in (("first", early), ("last", late)):
        print(f"{when} quarter, {len(part)} sessions: median step {np.median([one.step_ms for one in part]):.3f} ms, "
              f"the twin's {np.median([one.twin_ms for one in part if one.twin_ms is not None]):.3f} ms")  # fmt: skip
    print(f"the step against the twin's: {middle:+.2%} from the first quarter to the last (95 % {low:+.2%} to "
          f"{high:+.2%})")  # fmt: skip
    wrong = sum(one.wrong for one in replayed)
    problems = [f"{wrong} tokens were not the forced ones"] if wrong else []
    if end_mb - start_mb > max(GROWTH_MB, GROWTH * start_mb):
        problems.append(f"memory grew by {end_mb - start_mb:.1f} MB")
    if low > DRIFT or high < -DRIFT:
        problems.append(f"the step drifted by {middle:+.2%}")
    elif low < -DRIFT or high > DRIFT:
        print("too noisy to say that the step stayed within 1 %: run longer, or with nothing beside it")
    return problems


def _stop(process: "subprocess.Popen[str]") -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(timeout=60)


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
        words = ["--model", str(model), *given.words]
        print("starting the server and its twin", flush=True)
        process, host, port = serve(words, log)
        stack.callback(process.kill)
        twin, twin_host, twin_port = serve(words, stack.enter_context((folder / "twin.log").open("w")))
        stack.callback(twin.kill)
        both = [(host, port), (twin_host, twin_port)]
        turns = session(given.turns, VOCABULARY, random.Random(0))
        tokens = sum(len(turn.output) for turn in turns)
        print(
            f"a session: {len(turns)} turns, {tokens} output tokens, longest prompt {len(turns[-1].prompt)}",
            flush=True,
        )
        replay(both, turns)  # the first one sets things up
        before = gpu_mb()
        began = time.monotonic()
        watch = Watch(process.pid, began)
        watch.look()
        watch.start()
        replayed: list[Replayed] = []
        over, tenth = False, 1
        while not over:
            now = (time.monotonic() - began) / given.seconds
            if now >= tenth / 10:
                print(
                    f"{now * given.seconds:.0f} s: {len(replayed)} sessions, step {replayed[-1].step_ms:.3f} ms",
                    flush=True,
                )
                tenth += 1
            over = now >= 1  # one more with the twin
            beside = over or min(now, 1 - now) < PAIRED
            (step_ms, wrong), *control = replay(both[: 1 + beside], turns)
            twin_ms, others = control[0] if control else (None, 0)
            replayed.append(Replayed(time.monotonic() - began, step_ms, wrong + others, twin_ms))
        watch.end()
        after = gpu_mb()
        codes = [_stop(one) for one in (process, twin)]
    count = len(replayed) * len(turns)
    took_s = replayed[-1].ended_s
    print(f"{count:,} turns, {len(replayed)} sessions in {took_s:.0f} s; every token was forced and looked at")
    if before is not None:
        print(f"GPU memory {before} before, {after} after")
    problems = judge(replayed, watch.seen)
    problems += [f"a server ended with {code}" for code in codes if code != 0]
    print("\n".join(problems) if problems else "nothing unsteady was found")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
