"""Every way a turn can fail, through the whole harness: what is kept of it, and what happens to its session."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from analysis import metrics
from engines.base import EngineError
from engines.fake.catalogue import faults
from engines.forcing.self_test import probes
from engines.settings import EngineSettings
from replay.model import ModelSettings
from replay.progress import Progress
from replay.record import TurnRecord, read_result, read_turns
from replay.run import Run, execute
from workloads.settings import WorkloadSettings

COMMAND = "{python} -m engines.fake --port {port} --prefill-ms 0 --prefill-ms-per-token 0 --decode-ms 0"
FAKE = EngineSettings(
    name="fake", label="Fake", dialect="ostinato", forcing="field", model_format="none", command=COMMAND.split()
)
STARTING = len(list(probes(4096))) + 1
"""Completions of a start: the self-test and the warm-up."""
TURNS = 2


def nth(request: int) -> int:
    """The number of a started engine's ``request``-th completion after those of its start, from 1."""
    return STARTING + request


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Path]:
    """Replay sessions of two turns; return the run folder. A session's attempt sends three requests: one that makes
    the engine forget, and its turns."""

    def run(*flags: str, sessions: int = 2, engine: EngineSettings = FAKE, **changes: Any) -> Path:
        asked = Run(
            engine=replace(engine, command=[*engine.command, *flags]),
            workload=WorkloadSettings(name="synthetic", format="synthetic", sessions=sessions, turns=TURNS),
            model=ModelSettings(name="none"),
            folder=tmp_path,
        )
        execute(replace(asked, **changes), Progress(io.StringIO()))
        return tmp_path

    return run


def by_session(folder: Path) -> dict[str, list[TurnRecord]]:
    sessions: dict[str, list[TurnRecord]] = {}
    for turn in read_turns(folder):
        sessions.setdefault(turn.session_id, []).append(turn)
    return sessions


def told(turns: list[TurnRecord]) -> list[tuple[int, int, str]]:
    return [(turn.attempt, turn.turn, turn.status) for turn in turns]


KINDS = {
    "http_500": ("http", "HTTP 500: the server said server_error: expert 17 caught fire"),
    "http_503": ("http", "HTTP 503: the server said queue_full: too many requests wait"),
    "context": ("context", "the prompt exceeds the context of 16 tokens"),
    "json_answer": ("protocol", "expert 17 caught fire"),
    "error_event": ("error_event", "expert 17 caught fire"),
    "error_data": ("error_event", "expert 17 caught fire"),
    "error_then_reset": ("error_event", "expert 17 caught fire"),
    "abort": ("error_event", "abort"),
    "not_json": ("protocol", "{broken"),
    "not_utf8": ("protocol", "not UTF-8"),
    "gzip": ("protocol", "gzip"),
    "zero_tokens": ("zero_tokens", "no tokens"),
    "wrong_token": ("wrong_tokens", "forced"),
    "fewer_tokens": ("wrong_tokens", "stopped after"),
    "no_finish": ("cut", "without a finish_reason"),
    "cut": ("cut", "broke off"),
    "cut_inside_event": ("cut", "inside an event"),
    "reset": ("cut", "broke off"),
    "close_early": ("unreachable", "without an answer"),
    "reset_early": ("unreachable", "without an answer"),
    "stall": ("stalled", "silent for 1 s"),
    "stall_early": ("stalled", "no byte came"),
}


def test_the_table_of_kinds_is_whole() -> None:
    assert KINDS.keys() | {"die"} == faults("ostinato").keys()


def test_every_fault_is_kept_apart_said_and_followed_by_a_whole_session(start: Callable[..., Path]) -> None:
    flags = [f"--fault={fault}:{nth(6 * k + 3)}" for k, fault in enumerate(KINDS)]
    folder = start(*flags, sessions=len(KINDS), engine=replace(FAKE, stall_timeout_s=1.0))
    sessions = by_session(folder)
    assert len(sessions) == len(KINDS)
    for (kind, said), turns in zip(KINDS.values(), sessions.values(), strict=True):
        assert told(turns) == [(0, 0, "ok"), (0, 1, kind), (1, 0, "ok"), (1, 1, "ok")]
        failed = turns[1]
        assert said in (failed.error or "")
        assert not any(metric(failed) for metric in metrics.METRICS.values())  # nothing of it can be counted
        assert failed.verified_by is None
    result = read_result(folder)
    assert result["status"] == "complete"
    assert set(result["sessions"].values()) == {"complete"}


def test_a_session_is_tried_again_as_often_as_asked_then_reported_and_the_run_goes_on(
    start: Callable[..., Path],
) -> None:
    # The first session fails at its first turn, its second, its first: two, three, two requests an attempt.
    folder = start(*(f"--fault=http_500:{nth(number)}" for number in (2, 5, 7)), retries=2)
    first, second = by_session(folder).values()
    assert told(first) == [(0, 0, "http"), (1, 0, "ok"), (1, 1, "http"), (2, 0, "http")]
    assert told(second) == [(0, 0, "ok"), (0, 1, "ok")]
    result = read_result(folder)
    assert result["status"] == "complete"
    assert list(result["sessions"].values()) == ["failed", "complete"]
    assert {check["name"]: check["ok"] for check in result["validity"]}["sessions complete"] is False


def test_stop_ends_the_run_with_the_words_of_the_server(start: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="turn 0: HTTP 500: the server said server_error: expert 17 caught fire"):
        start(f"--fault=http_500:{nth(2)}", retries=0, on_failure="stop")
    assert len(list(read_turns(tmp_path))) == 1
    result = read_result(tmp_path)
    assert (result["status"], list(result["sessions"].values())) == ("failed", ["failed"])


def test_an_engine_that_died_is_started_again_for_its_session(start: Callable[..., Path], tmp_path: Path) -> None:
    journal = tmp_path / "journal"  # the second engine counts on from it
    folder = start(f"--journal={journal}", f"--fault=die:{nth(3)}")
    first, second = by_session(folder).values()
    assert told(first) == [(0, 0, "ok"), (0, 1, "cut"), (1, 0, "ok"), (1, 1, "ok")]
    assert told(second) == [(0, 0, "ok"), (0, 1, "ok")]
    assert (folder / "server.log").read_text().count("serving fake at") == 2
    assert read_result(folder)["status"] == "complete"


def test_a_start_that_fails_after_a_death_is_tried_again(start: Callable[..., Path], tmp_path: Path) -> None:
    death = nth(3)
    folder = start(f"--journal={tmp_path / 'journal'}", f"--fault=die:{death}", f"--fault=http_500:{death + 1}")
    assert set(read_result(folder)["sessions"].values()) == {"complete"}
    assert (folder / "server.log").read_text().count("serving fake at") == 3


def test_a_first_start_that_fails_ends_the_run_at_once(start: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="self-test of forced tokens failed: output token"):
        start("--fault=wrong_token:1")
    assert (tmp_path / "server.log").read_text().count("serving fake at") == 1


def test_an_engine_that_dies_at_its_first_request_shows_its_log(start: Callable[..., Path]) -> None:
    with pytest.raises(
        EngineError, match=r"died at its first requests \(exit code 1\); its last log lines:\n.*serving fake"
    ):
        start("--fault=die:1")


def test_what_fails_while_the_engine_forgets_costs_no_session(start: Callable[..., Path]) -> None:
    folder = start(f"--fault=http_500:{nth(1)}")
    assert {turn.status for turn in read_turns(folder)} == {"ok"}


def test_an_answer_that_takes_too_long_is_a_timeout_and_no_stall(start: Callable[..., Path]) -> None:
    slow = replace(FAKE, request_timeout_s=1.0, stall_timeout_s=30.0)
    folder = start(f"--fault=stall:{nth(2)}", engine=slow)
    (failed,) = [turn for turn in read_turns(folder) if turn.status != "ok"]
    assert failed.status == "timeout"
    assert "no whole answer within 1 s" in (failed.error or "")


def test_a_machine_that_stood_still_is_no_stalled_engine(tmp_path: Path) -> None:
    """As a paused container or virtual machine does: both stop, and the engine speaks a little later again."""
    words = ["engine=fake", "engine.options.prefill_ms=250", "engine.stall_timeout_s=0.5", "retries=0", "report=null"]
    words += ["workload=synthetic", "workload.sessions=1", "workload.turns=2", "telemetry.every_s=null"]
    with subprocess.Popen(
        [sys.executable, "-m", "replay.cli", *words],
        cwd=tmp_path,
        env={**os.environ, "OSTINATO_CACHE": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as harness:
        try:
            while not any(path.read_bytes() for path in tmp_path.glob("results/*/*/*/turns.jsonl")):
                assert harness.poll() is None
                time.sleep(0.02)
            time.sleep(0.1)  # the second turn waits for its first token
            engine = next(
                child
                for child in psutil.Process(harness.pid).children(recursive=True)
                if "engines.fake" in child.cmdline()
            )
            engine.suspend()
            harness.send_signal(signal.SIGSTOP)
            time.sleep(0.6)
            harness.send_signal(signal.SIGCONT)
            time.sleep(0.1)
            engine.resume()
            said, _ = harness.communicate(timeout=30)
        finally:
            harness.kill()
    assert harness.returncode == 0, said
    (turns,) = tmp_path.glob("results/*/*/*/turns.jsonl")
    assert [turn.status for turn in read_turns(turns.parent)] == ["ok", "ok"]
