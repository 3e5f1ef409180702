"""A long replay against an engine that fails at random: is every turn accounted for, and does the harness stay small?

    python benchmarks/soak.py --turns 20000 --fault-rate 0.02 --fault-seed 7

The fake engine (a process of its own, started again when it dies) writes each completion into its journal. The
harness, as ``replay`` starts it, replays small sessions one after another; its memory and open files are read twice a
second. Afterwards the records must tell what the journal tells:

    each attempt at a session holds its turns from the first on, each once; only its last may have failed
    the journal's completions of the sessions' prompts are the records' turns, in the same order, none more, none less
    a turn is ``ok`` if and only if the engine sent it without a fault, and then with as many tokens as it sent
    every session is complete, or failed in all of its attempts

Prints the figures; the exit code is 1 when something is lost, counted twice, or grows.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson
import psutil

from engines.fake.catalogue import faults
from engines.fake.journal import prompt_key
from replay.record import TurnRecord, read_result, read_turns
from workloads import store
from workloads.render import Renderer
from workloads.sample_paths import TOKENIZER
from workloads.session import Session, Turn

TURNS_A_SESSION = 20
RETRIES = 3
STALL_S = 0.5
START = 20
"""The self-test and the warm-up of the first start are over by this completion."""
GROWTH_MB, GROWTH_FILES = 50.0, 2
FAULTS = faults("ostinato").keys()
NEVER_ARRIVED = "nothing answers at"
"""How a turn's error begins when the engine was dead before the request."""


def sessions(turns: int) -> Iterator[Session]:
    """Small sessions of random ids, no two prompts alike."""
    draw = random.Random(turns)
    vocabulary = range(1000, 4000)
    for number in range(-(-turns // TURNS_A_SESSION)):
        yield Session(
            session_id=f"soak-{number}",
            source="soak",
            turns=tuple(
                Turn(
                    kind="tool" if turn else "first",
                    delta_ids=tuple(draw.choices(vocabulary, k=draw.randint(6, 12))),
                    output_ids=tuple(draw.choices(vocabulary, k=draw.randint(2, 8))),
                )
                for turn in range(TURNS_A_SESSION)
            ),
        )


@dataclass(frozen=True, slots=True)
class Usage:
    rss_mb: float
    files: int
    recorded: int
    """Bytes of records so far."""


def replay(folder: Path, journal: Path, given: argparse.Namespace) -> list[Usage]:
    """Run the harness; return what it used, twice a second from the first record on."""
    recorded = folder / "soak.parquet"
    renderer = Renderer(TOKENIZER)
    hashed, size = renderer.tokenizer_hash, renderer.vocab_size
    store.write(recorded, sessions(given.turns), tokenizer_hash=hashed, vocab_size=size)
    words = ["{python}", "-m", "engines.fake", "--port={port}"]
    words += ["--prefill-ms=0", "--prefill-ms-per-token=0", "--decode-ms=0", f"--journal={journal}"]
    words += [f"--fault-rate={given.fault_rate}", f"--fault-seed={given.fault_seed}", f"--fault-from={START}"]
    command = ",".join(f"'{word}'" for word in words)
    overrides = ["engine=fake", f"engine.command=[{command}]", f"engine.stall_timeout_s={STALL_S}"]
    overrides += ["workload=sessions", f"workload.path={recorded}", f"retries={RETRIES}", "report=null"]
    used = []
    with (folder / "replay.log").open("wb") as log:
        harness = subprocess.Popen(
            [sys.executable, "-m", "replay.cli", *overrides], cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            process = psutil.Process(harness.pid)
            while harness.poll() is None:
                for path in folder.glob("results/*/*/*/turns.jsonl"):
                    used.append(Usage(process.memory_info().rss / 1e6, process.num_fds(), path.stat().st_size))
                time.sleep(0.5)
        finally:
            harness.kill()
    if harness.returncode not in (0, 1):  # 1: sessions failed, as some must
        sys.exit(f"replay ended with {harness.returncode}: {(folder / 'replay.log').read_text()[-2000:]}")
    return used


def read_journal(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def lost_or_doubled(
    expected: Sequence[Session],
    turns: Sequence[TurnRecord],
    journal: Sequence[dict[str, Any]],
    states: dict[str, str],
) -> list[str]:
    """What the records, the journal and the result disagree on; nothing when all is well."""
    problems: list[str] = []
    of_session: dict[str, list[TurnRecord]] = {}
    for turn in turns:
        of_session.setdefault(turn.session_id, []).append(turn)
    for session in expected:
        mine = of_session.get(session.session_id, [])
        problems += _attempts(session, mine, states.get(session.session_id))
    keys = {
        (session.session_id, number): prompt_key(prompt)
        for session in expected
        for number, prompt in enumerate(session.prompts())
    }
    recorded = set(keys.values())
    served = [row for row in journal if row["prompt"] in recorded]
    arrived = [turn for turn in turns if not (turn.error or "").startswith(NEVER_ARRIVED)]
    if [row["prompt"] for row in served] != [keys[turn.session_id, turn.turn] for turn in arrived]:
        problems.append(f"the engine served {len(served)} turns, the records hold {len(arrived)}, or another order")
        return problems
    for row, turn in zip(served, arrived, strict=True):
        place = f"{turn.session_id}, attempt {turn.attempt}, turn {turn.turn}"
        if (row["stream"] in FAULTS) != (turn.status != "ok"):
            problems.append(f"{place}: {row['stream']} was sent, {turn.status} recorded")
        if turn.status == "ok" and not row["sent_tokens"] == turn.output_tokens == len(turn.token_ns):
            problems.append(f"{place}: {row['sent_tokens']} tokens sent, {len(turn.token_ns)} recorded")
    return problems


def _attempts(session: Session, turns: Sequence[TurnRecord], state: str | None) -> Iterator[str]:
    attempts = [list(group) for _, group in groupby(turns, key=lambda turn: turn.attempt)]
    for number, attempt in enumerate(attempts):
        whole = len(attempt) == len(session.turns)
        held = [(turn.attempt, turn.turn) for turn in attempt]
        if held != [(number, turn) for turn in range(len(attempt))]:
            yield f"{session.session_id}: attempt {number} holds {held}"
        if any(turn.status != "ok" for turn in attempt[:-1]) or (attempt[-1].status == "ok" and not whole):
            yield f"{session.session_id}: attempt {number} went on after a failure, or stopped without one"
        if whole and attempt[-1].status == "ok" and number != len(attempts) - 1:
            yield f"{session.session_id}: tried again after it was complete"
    complete = bool(attempts) and attempts[-1][-1].status == "ok"
    if state != ("complete" if complete else "failed"):
        yield f"{session.session_id}: {'complete' if complete else 'failed'} by its records, {state} in the result"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20_000, help="recorded turns (default %(default)s)")
    parser.add_argument("--fault-rate", type=float, default=0.02)
    parser.add_argument("--fault-seed", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, began_s = Path(name), time.monotonic()
        used = replay(folder, folder / "journal", given)
        took_s = time.monotonic() - began_s
        (run,) = folder.glob("results/*/*/*/turns.jsonl")
        turns, result = list(read_turns(run.parent)), read_result(run.parent)
        states = result["sessions"]
        journal = read_journal(folder / "journal")
        starts = (run.parent / "server.log").read_text().count("serving fake at")
    problems = lost_or_doubled(list(sessions(given.turns)), turns, journal, states)
    kinds = Counter(turn.status for turn in turns)
    print(f"{len(turns):,} turns in {took_s:.0f} s, {kinds.pop('ok'):,} ok; {len(journal):,} completions served")
    print(f"failed: {', '.join(f'{kind} {count}' for kind, count in kinds.most_common())}")
    print(f"sessions: {dict(Counter(states.values()))}; the engine was started {starts} times")
    problems += _grown(used)
    if result["status"] != "complete":
        problems.append(f"the run is {result['status']}: {result['error']}")
    print("\n".join(problems[:20]) if problems else "nothing lost, nothing counted twice, nothing grew")
    sys.exit(1 if problems else 0)


def _grown(used: Sequence[Usage]) -> list[str]:
    """Compare the last tenth of the replay with the second: the first holds what every run takes once.

    After the last turn the run's telemetry is converted, for which a library of 50 MB is loaded: that is shown apart.
    """
    concluded = used[-1]
    used = [usage for usage in used if usage.recorded < concluded.recorded] or used
    tenth = max(1, len(used) // 10)
    print(f"memory {concluded.rss_mb:.1f} MB when the run was concluded")
    print("memory over the run, MB:", *(f"{used[k * len(used) // 10].rss_mb:.0f}" for k in range(10)))
    early, late = used[tenth : 2 * tenth] or used, used[-tenth:]
    before, after = max(usage.rss_mb for usage in early), max(usage.rss_mb for usage in late)
    files_before, files_after = max(usage.files for usage in early), max(usage.files for usage in late)
    print(f"memory {before:.1f} MB early, {after:.1f} MB late; open files {files_before} early, {files_after} late")
    problems = []
    if after - before > GROWTH_MB:
        problems.append(f"memory grew by {after - before:.1f} MB")
    if files_after - files_before > GROWTH_FILES:
        problems.append(f"{files_after - files_before} files more are open")
    return problems


if __name__ == "__main__":
    main()
