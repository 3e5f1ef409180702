"""A long replay against an engine that fails at random loses nothing, counts nothing twice and stays small."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from replay.record import TurnRecord

SCRIPT = Path(__file__).parents[1] / "benchmarks/soak.py"


@pytest.fixture(scope="module")
def soak(module_of: Callable[[str, str], ModuleType]) -> ModuleType:
    return module_of("soak", "benchmarks/soak.py")


def run(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], cwd=SCRIPT.parents[1], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing lost, nothing counted twice, nothing grew" in done.stdout


def test_a_short_soak_accounts_for_every_turn() -> None:
    run("--turns", "200", "--fault-rate", "0.05")


@pytest.mark.slow
def test_twenty_thousand_turns_are_all_accounted_for() -> None:
    run("--turns", "20000", "--fault-rate", "0.02")


Told = tuple[list[Any], list[TurnRecord], list[dict[str, Any]], dict[str, str]]


@pytest.fixture
def told(soak: ModuleType) -> Told:
    """One session without a failure, as its records, the engine's journal and the result tell it."""
    (session,) = soak.sessions(20)
    turns = [
        TurnRecord(
            engine="fake",
            session_id=session.session_id,
            turn=number,
            kind=turn.kind,
            attempt=0,
            status="ok",
            prompt_tokens=9,
            new_tokens=9,
            output_tokens=len(turn.output_ids),
            due_ns=0,
            token_ns=(1,) * len(turn.output_ids),
        )
        for number, turn in enumerate(session.turns)
    ]
    journal = [
        {"prompt": soak.prompt_key(prompt), "stream": "plain", "sent_tokens": len(turn.output_ids)}
        for prompt, turn in zip(session.prompts(), session.turns, strict=True)
    ]
    return [session], turns, journal, {session.session_id: "complete"}


def test_the_account_of_a_faultless_run_finds_nothing(soak: ModuleType, told: Told) -> None:
    assert soak.lost_or_doubled(*told) == []


def test_the_account_finds_what_is_lost_doubled_or_mistaken(soak: ModuleType, told: Told) -> None:
    sessions, turns, journal, states = told
    fewer = replace(turns[3], token_ns=())
    failed = replace(turns[-1], status="cut", token_ns=())
    wrong = {
        "a turn is lost": (turns[:-1], journal, states),
        "a turn is there twice": ([*turns, turns[-1]], journal, states),
        "the engine served one more": (turns, [*journal, journal[-1]], states),
        "tokens are lost": ([*turns[:3], fewer, *turns[4:]], journal, states),
        "a broken answer is counted": (turns, [*journal[:-1], {**journal[-1], "stream": "cut"}], states),
        "a whole answer is not": ([*turns[:-1], failed], journal, {sessions[0].session_id: "failed"}),
        "the session is forgotten": (turns, journal, {}),
    }
    found = {name: soak.lost_or_doubled(sessions, *account) for name, account in wrong.items()}
    assert all(found.values()), found
