"""Worlds with known effects: run folders written as a run writes them, by engines whose speed is set here."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay.record import RecordWriter, TurnRecord, write_result

LABELS = {"a": "A", "ostinato": "Ostinato", "llamacpp": "llama.cpp", "ik_llamacpp": "ik_llama.cpp"}
ENVIRONMENT = {
    "machine": "3f2a",
    "cpu": "Made-up 9000",
    "cores": 2,
    "gpus": None,
    "kernel": "6.1.0",
    "python": "3.11.9",
}


@dataclass(frozen=True)
class Speed:
    """``factor`` scales every time; ``spread`` is the sd of a session's own log factor."""

    factor: float = 1.0
    spread: float = 0.0
    first_token_s: float = 0.02
    prefill_token_s: float = 0.0005
    tpot_s: float = 0.01


Recording = dict[str, list[tuple[str, int, int, int]]]
"""Session → turns: kind, prompt tokens, new tokens, output tokens."""


def recording(sessions: int, turns: int, seed: int = 0) -> Recording:
    rng = np.random.default_rng(seed)
    recorded: Recording = {}
    for number in range(sessions):
        prompt, rows = 0, []
        for turn in range(turns):
            kind = "first" if turn == 0 else ("user" if turn % 4 == 3 else "tool")
            new = int({"first": 1500, "tool": 250, "user": 40}[kind] * rng.lognormal(0, 0.5))
            output = int(rng.integers(2, 60))
            prompt += new
            rows.append((kind, prompt, new, output))
            prompt += output
        recorded[f"session-{number:02}"] = rows
    return recorded


def turn_records(name: str, recorded: Recording, speed: Speed, seed: int) -> list[TurnRecord]:
    rng = np.random.default_rng(seed)
    now, records = 1_000_000_000, []
    for session, rows in recorded.items():
        slow = speed.factor * float(np.exp(rng.normal(0, speed.spread)))
        for turn, (kind, prompt, new, output) in enumerate(rows):
            prefill_s = slow * (speed.first_token_s + speed.prefill_token_s * new)
            first_ns = now + 50_000 + int(prefill_s * 1e9)
            tokens = tuple(first_ns + int(i * slow * speed.tpot_s * 1e9) for i in range(output))
            records.append(
                TurnRecord(
                    engine=name, session_id=session, turn=turn, kind=kind, attempt=0, status="ok",
                    prompt_tokens=prompt, new_tokens=new, output_tokens=output,
                    due_ns=now, sent_ns=now + 50_000, first_byte_ns=first_ns - 1000, token_ns=tokens,
                    end_ns=tokens[-1] + 100_000, verified_by="ids",
                    cached_tokens=prompt - new - (turn > 0), prefilled_tokens=new + (turn > 0),
                    server_prefill_s=prefill_s - 0.0001, server_decode_s=(output - 1) * slow * speed.tpot_s,
                )
            )  # fmt: skip
            now = tokens[-1] + 1_000_000
    return records


def result_of(name: str, records: list[TurnRecord], recorded: Recording, **changes: Any) -> dict[str, Any]:
    reached = dict.fromkeys(r.session_id for r in records)
    failed = {s for s in reached if [r for r in records if r.session_id == s][-1].status != "ok"}
    result: dict[str, Any] = {
        "version": 1, "status": "complete", "error": None,
        "engine": {
            "name": name, "label": LABELS.get(name, name), "note": "", "settings": {}, "server": {"version": "1"},
        },
        "workload": {
            "name": "made-up", "hash": "5e55104", "sessions": len(recorded),
            "turns": sum(map(len, recorded.values())), "losses": {},
            "turns_by_session": {session: len(turns) for session, turns in recorded.items()},
        },
        "model": {"name": "tiny", "hash": "ab12"}, "environment": dict(ENVIRONMENT), "config": {"seed": 0},
        "clock": {"perf_ns": 0, "wall_ns": 1_796_000_000_000_000_000},
        "sessions": {s: "failed" if s in failed else "complete" for s in reached},
        "validity": [{"name": "tokens verified", "ok": not failed, "value": "all", "advice": "see server.log"}],
    }  # fmt: skip
    return result | changes


def write_run(folder: Path, records: list[TurnRecord], result: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    with RecordWriter(folder) as writer:
        for record in records:
            writer.append(record)
    write_result(folder, result)
    return folder


World = Callable[..., Path]
Change = Callable[[list[TurnRecord]], list[TurnRecord]]


def build(
    folder: Path,
    speeds: dict[str, Speed],
    *,
    sessions: int = 8,
    turns: int = 5,
    records: dict[str, Change] | None = None,
    results: dict[str, dict[str, Any]] | None = None,
) -> Path:
    """One run folder an engine. ``records`` changes an engine's turns, ``results`` fields of its result."""
    recorded = recording(sessions, turns)
    for seed, (name, speed) in enumerate(speeds.items()):
        made = turn_records(name, recorded, speed, seed)
        made = (records or {}).get(name, lambda same: same)(made)
        write_run(folder / name, made, result_of(name, made, recorded, **(results or {}).get(name, {})))
    return folder


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Build a world in an empty folder: ``world({"llamacpp": speed(), "ostinato": speed(factor=0.6)})``."""
    return lambda speeds, **options: build(tmp_path / "runs", speeds, **options)


@pytest.fixture(scope="session")
def speed() -> type[Speed]:
    return Speed


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight sessions on three engines: Ostinato needs 60 % and ik_llama.cpp 90 % of llama.cpp's time. Read only."""
    folder = tmp_path_factory.mktemp("three") / "runs"
    return build(
        folder, {"llamacpp": Speed(spread=0.03), "ik_llamacpp": Speed(0.9, 0.03), "ostinato": Speed(0.6, 0.03)}
    )


@pytest.fixture(scope="session")
def fail_turn() -> Callable[[str, int], Change]:
    """A change that lets one turn fail and drops the session's later turns, as a run does."""

    def at(session: str, turn: int) -> Change:
        def change(made: list[TurnRecord]) -> list[TurnRecord]:
            return [
                replace(r, status="tokens", error="token 3: expected 7, got 9", token_ns=(), end_ns=None)
                if (r.session_id, r.turn) == (session, turn)
                else r
                for r in made
                if r.session_id != session or r.turn <= turn
            ]

        return change

    return at
