"""How long a report takes, part by part.

    python benchmarks/report_speed.py [--engines 13] [--sessions 60] [--turns 1000] [--folder FOLDER]

Writes made-up records of so many engines and turns (150 output tokens each), and reads them as `analyse` does.
"""

import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from analysis.comment import summary_markdown
from analysis.export import exports
from analysis.figures.catalogue import figures
from analysis.page.render import page
from analysis.results import results
from analysis.summary import Summary, summarise
from analysis.tables.catalogue import tables
from replay.record import RecordWriter, TurnRecord, write_result

NAMES = ("ostinato", "llamacpp", "llamacpp_cache", "ik_llamacpp", "buun", "ktransformers", "freetoken")
OUTPUT = 150


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of a report, part by part.")
    parser.add_argument("--engines", type=int, default=13)
    parser.add_argument("--sessions", type=int, default=60)
    parser.add_argument("--turns", type=int, default=1_000, help="of each engine, over all sessions")
    parser.add_argument("--folder", type=Path, help="keep the records there, or read them from there")
    parser.add_argument("--profile", action="store_true", help="print the slowest functions of the summary")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary) / "runs"
        if not folder.exists():
            write(folder, chosen.engines, chosen.sessions, chosen.turns)
        size = sum(path.stat().st_size for path in folder.rglob("turns.jsonl"))
        print(f"{chosen.engines} engines × {chosen.turns:,} turns in {chosen.sessions} sessions, {size / 1e6:.0f} MB")
        _report(folder, profiled=chosen.profile)


def _report(folder: Path, *, profiled: bool) -> None:
    profile = cProfile.Profile()
    if profiled:
        profile.enable()
    summary: Summary = _timed("records → summary", lambda: summarise(folder))
    if profiled:
        profile.disable()
    made: dict[str, Callable[[], Any]] = {
        "tables": lambda: tables(summary),
        "figures": lambda: figures(summary),
        "results.json": lambda: results(summary),
        "tables/*.csv, turns.parquet": lambda: exports(summary),
        "summary.md": lambda: summary_markdown(summary),
        "report.html": lambda: page(summary),
    }
    for name, work in made.items():
        _timed(name, work)
    if profiled:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(25)


def _timed(name: str, work: Callable[[], Any]) -> Any:
    started, cpu_started = time.perf_counter(), time.process_time()
    made = work()
    cpu_s, wall_s = time.process_time() - cpu_started, time.perf_counter() - started
    size = f", {len(made):,} characters" if isinstance(made, str) else ""
    print(f"{name:<30} {wall_s:7.2f} s, CPU {cpu_s:6.2f} s{size}", flush=True)
    return made


def write(folder: Path, engines: int, sessions: int, turns: int) -> None:
    rng = np.random.default_rng(0)
    kinds = ["first" if turn < sessions else ("user" if turn % 3 == 0 else "tool") for turn in range(turns)]
    new = rng.lognormal(5.5, 1, turns).astype(int) + 1
    for number in range(engines):
        name = NAMES[number] if number < len(NAMES) else f"engine_{number}"
        _write_run(folder / name, name, 1 + 0.1 * number, sessions, kinds, new.tolist(), rng)


def _write_run(
    folder: Path, name: str, factor: float, sessions: int, kinds: list[str], new: list[int], rng: np.random.Generator
) -> None:
    folder.mkdir(parents=True)
    reached, prompts, now = [0] * sessions, [0] * sessions, 1_000_000_000
    with RecordWriter(folder) as writer:
        for at, (kind, new_tokens) in enumerate(zip(kinds, new, strict=True)):
            session = at % sessions
            prompts[session] += new_tokens
            first = now + int(factor * (2e7 + 5e5 * new_tokens * rng.lognormal(0, 0.1)))
            gaps = rng.lognormal(0, 0.05, OUTPUT) * factor * 1e7
            tokens = tuple(first + np.cumsum(gaps).astype(np.int64) - int(gaps[0]))
            writer.append(
                TurnRecord(
                    engine=name, session_id=f"session-{session:03}", turn=reached[session], kind=kind, attempt=0,
                    status="ok", prompt_tokens=prompts[session], new_tokens=new_tokens, output_tokens=OUTPUT,
                    due_ns=now, sent_ns=now + 1_000, first_byte_ns=first, token_ns=tuple(map(int, tokens)),
                    end_ns=int(tokens[-1]) + 1_000, verified_by="ids", cached_tokens=prompts[session] - new_tokens,
                    prefilled_tokens=new_tokens, server_prefill_s=(first - now) / 1e9, server_decode_s=1.0,
                )
            )  # fmt: skip
            reached[session], prompts[session] = reached[session] + 1, prompts[session] + OUTPUT
            now = int(tokens[-1]) + 1_000_000
    names = [f"session-{session:03}" for session in range(sessions)]
    write_result(
        folder,
        {
            "version": 1, "status": "complete", "error": None,
            "engine": {"name": name, "label": name, "note": "", "settings": {}, "server": {}},
            "workload": {
                "name": "made-up", "hash": "0", "sessions": sessions, "turns": len(kinds), "losses": {},
                "turns_by_session": dict(zip(names, reached, strict=True)),
            },
            "model": {"name": "none", "hash": "0"}, "environment": {}, "config": {}, "sessions":
            dict.fromkeys(names, "complete"), "validity": [], "clock": {"perf_ns": 0, "wall_ns": 1},
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
