"""The hour of turns: its session, its figures and what it calls unsteady."""

import random
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("torch", reason="the server that is watched needs the extra `ostinato`")
SCRIPT = Path(__file__).parents[1] / "benchmarks/steady.py"


@pytest.fixture(scope="module")
def steady(module_of: Callable[[str, str], ModuleType]) -> ModuleType:
    return module_of("steady", "benchmarks/steady.py")


def test_a_sessions_prompts_hold_what_was_said_before(steady: ModuleType) -> None:
    turns = steady.session(5, 1000, random.Random(0))
    for before, after in pairwise(turns):
        assert after.prompt[: len(before.prompt) + len(before.output)] == before.prompt + before.output


def test_drift_is_of_medians_and_its_interval_holds_it(steady: ModuleType) -> None:
    early, late = [1.0, 1.01, 0.99, 1.0], [1.1, 1.11, 1.09, 1.1]
    middle, low, high = steady.drift(early, late, np.random.default_rng(0))
    assert middle == pytest.approx(0.1)
    assert low <= middle <= high
    assert low > steady.DRIFT


def test_growth_drift_and_other_tokens_are_named(steady: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def judged(growth_mb: float, slower: float, wrong: int, machine: float = 0.0) -> str:
        replayed = [
            steady.Replayed(
                ended_s=s,
                step_ms=5.0 * (1 + (slower + machine) * s / 100),
                wrong=wrong * (s == 50),
                twin_ms=None if 25 < s <= 75 else 5.0 * (1 + machine * s / 100),
            )
            for s in range(1, 101)
        ]
        seen = [steady.Memory(float(s), 500 + growth_mb * s / 100, 7) for s in range(101)]
        return "; ".join(steady.judge(replayed, seen))

    assert judged(2, 0.001, 0) == ""
    said = capsys.readouterr().out
    assert "memory 500.0 MB before the first turn" in said
    assert "first quarter, 25 sessions: median step 5.001 ms, the twin's 5.000 ms" in said
    assert "last quarter, 25 sessions: median step 5.004 ms, the twin's 5.000 ms" in said
    assert judged(60, 0.001, 0).startswith("memory grew by ")
    assert judged(2, 0.5, 0).startswith("the step drifted by +3")
    assert judged(2, 0.001, 0, machine=0.5) == "", "a machine that grows slower is not the server's drift"
    assert judged(2, 0.001, 3) == "3 tokens were not the forced ones"


def test_a_first_session_longer_than_the_others_is_still_early(steady: ModuleType) -> None:
    first, second = steady.Replayed(3.1, 5.0, 0, 5.0), steady.Replayed(6.0, 5.0, 0, 5.0)
    assert steady.quarters([first, second]) == ([first], [second])


@pytest.mark.slow
def test_a_few_seconds_of_turns_against_a_real_server() -> None:
    words = [
        sys.executable,
        str(SCRIPT),
        "--seconds",
        "4",
        "--",
        "--device",
        "cpu",
        "--threads",
        "1",
        "--slots",
        "16",
    ]
    done = subprocess.run(words, cwd=SCRIPT.parents[1], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # 1: a step that drifts, as one may on a busy machine
    assert "every token was forced and looked at" in done.stdout, done.stdout + done.stderr
    assert "the step against the twin's: " in done.stdout
    assert "were not the forced ones" not in done.stdout
    assert "a server ended with" not in done.stdout
