"""What is left, and what is said, when a run or its engine does not end well."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from replay.record import read_result, read_turns

pytestmark = pytest.mark.slow

LIBLLAMA = ["engine=llamacpp", "engine.container.image=ostinato-libllama"]
GROWS = Path(__file__).with_name("grows.py")


def only(folder: Path, name: str) -> Path:
    (path,) = folder.glob(f"results/*/*/*/{name}")
    return path


def test_after_a_crash_the_engine_is_started_again_and_the_session_begins_at_its_first_turn(
    replay: Callable[..., Any], image: Any, left: Any, tmp_path: Path
) -> None:
    image("ostinato-libllama")
    with replay(*LIBLLAMA, "workload.max_turns=8") as harness:
        harness.until(lambda: harness.turns() >= 3)
        (container,) = left()
        container.kill()
        code, said = harness.finished()
    assert code == 0, said
    turns = list(read_turns(only(tmp_path, "turns.jsonl").parent))
    (failed,) = [turn for turn in turns if turn.status != "ok"]
    assert "the engine died (exit code 137, signal 9)" in str(failed.error)
    again = [turn.turn for turn in turns if (turn.session_id, turn.attempt) == (failed.session_id, 1)]
    assert again == list(range(len(again)))
    assert set(read_result(only(tmp_path, "result.json").parent)["sessions"].values()) == {"complete"}
    assert left() == []


def test_memory_that_runs_out_at_the_start_is_named(replay: Callable[..., Any], image: Any, left: Any) -> None:
    # Memory that is written: a server's libraries can be dropped and read again, for minutes.
    greedy = "engine.container.command=[python3,-c,'b\"x\" * 2**30']"
    words = [greedy, "engine.container.memory=40m"]
    with replay("engine=ostinato", f"engine.container.image={image('ostinato:cpu')}", *words) as harness:
        code, said = harness.finished()
    assert code == 2, said
    assert "killed as it ran out of memory; its limit is engine.container.memory=40m; raise it" in said
    assert left() == []


def test_memory_that_runs_out_in_the_middle_of_a_turn_is_named_in_its_record(
    replay: Callable[..., Any], image: Any, left: Any, tmp_path: Path
) -> None:
    command = "engine.container.command=[python3,/grows.py,'{host}','{port}']"
    mount = f"+engine.container.mounts={{{GROWS}:/grows.py}}"
    words = [command, mount, "engine.container.memory=200m", "retries=0", "workload.max_turns=4"]
    with replay(*LIBLLAMA, f"engine.container.image={image('ostinato-libllama')}", *words) as harness:
        code, said = harness.finished()
    assert code == 1, said
    failed = [turn for turn in read_turns(only(tmp_path, "turns.jsonl").parent) if turn.status != "ok"]
    assert failed
    assert all("killed as it ran out of memory" in str(turn.error) for turn in failed), failed
    assert left() == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_what_is_done_and_leaves_no_container(
    number: signal.Signals, code: int, replay: Callable[..., Any], image: Any, left: Any, tmp_path: Path
) -> None:
    image("ostinato-libllama")
    with replay(*LIBLLAMA) as harness:
        harness.until(lambda: harness.turns() >= 2)
        assert len(left()) == 1
        harness.process.send_signal(number)
        assert harness.finished(60)[0] == code
    assert left() == []
    assert read_result(only(tmp_path, "result.json").parent)["status"] == "interrupted"


def test_after_kill_9_the_container_goes(replay: Callable[..., Any], image: Any, left: Any) -> None:
    image("ostinato-libllama")
    with replay(*LIBLLAMA) as harness:
        harness.until(lambda: harness.turns() >= 2)
        assert len(left()) == 1
        harness.process.kill()
        harness.process.wait()
        deadline = time.monotonic() + 60
        while left() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert left() == []


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["engine.container.image=nowhere/none:0"], r"there is no image nowhere/none:0 here; `docker pull"),
        (["engine.container.image=NO//image"], "is no image name"),
        (["engine.container.gpus=all"], "install nvidia-container-toolkit"),
        (["engine.container.entrypoint=[nothing]"], "exit code 127: its image can't run this program"),
        (["engine.container.cpuset_cpus=0-4096"], "see `lscpu`"),
        (["engine.container.memory=1k"], "write it as in 64g"),
        (["+engine.container.mounts={/no/such/folder:/inside}"], "correct engine.container.mounts"),
    ],
)
def test_what_docker_refuses_is_said_in_one_line_with_the_remedy(
    words: list[str], advice: str, replay: Callable[..., Any], image: Any, left: Any, client: docker.DockerClient
) -> None:
    image("ostinato-libllama")
    if "gpu" in words[0] and "nvidia" in client.info()["Runtimes"]:
        pytest.skip("this daemon can give containers GPUs")
    with replay(*LIBLLAMA, *words) as harness:
        code, said = harness.finished()
    assert code == 2, said
    (complaint,) = [line for line in said.splitlines() if line.startswith("replay: ")]
    assert advice in complaint
    assert "Traceback" not in said
    assert left() == []
