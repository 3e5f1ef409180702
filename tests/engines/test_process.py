import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest

from engines.base import EngineError
from engines.process import ProcessServer, _version
from engines.settings import EngineSettings

pytestmark = pytest.mark.anyio

# Answers every request with 200, after it has said what the test wants to know.
ENGINE = """
import os, signal, socket, sys, time
port, habit = int(sys.argv[1]), sys.argv[2]
if habit == "dies":
    print("first line"); print("no such model: tiny", file=sys.stderr); sys.exit(7)
if habit == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if habit in ("helpers", "stubborn"):
    helper = os.fork()
    if helper == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    print("helper", helper, flush=True)
if habit == "environment":
    print({name: os.environ.get(name) for name in ("LD_PRELOAD", "FLAVOUR", "PLAN")}, flush=True)
if habit == "silent":
    time.sleep(600)
listener = socket.create_server(("127.0.0.1", port))
print("listening", flush=True)
while True:
    connection, _ = listener.accept()
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
    connection.close()
    if habit == "crashes":
        os.abort()
"""


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., EngineSettings]:
    program = tmp_path / "engine.py"
    program.write_text(ENGINE)

    def made(habit: str = "good", **changes: object) -> EngineSettings:
        base: dict[str, object] = {
            "name": "tested",
            "label": "Tested",
            "dialect": "ostinato",
            "forcing": "none",
            "command": ["{python}", "-S", str(program), "{port}", habit],
            "start_timeout_s": 20.0,
            "stop_grace_s": 0.5,
        }
        return EngineSettings(**{**base, **changes})  # type: ignore[arg-type]

    return made


def server(settings: EngineSettings, folder: Path, **environment: str) -> ProcessServer:
    return ProcessServer(settings, model=None, folder=folder, environment=environment)


async def until(condition: Callable[[], bool], within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while not (met := condition()) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return met


async def gone(*pids: int, within_s: float = 5.0) -> bool:
    return await until(lambda: not any(psutil.pid_exists(pid) for pid in pids), within_s)


def helper_of(engine: ProcessServer) -> int:
    return next(int(line.split()[1]) for line in engine.log_tail() if line.startswith("helper"))


async def test_a_started_engine_is_alive_and_described_and_a_stopped_one_is_gone(settings, tmp_path) -> None:
    engine = server(settings(), tmp_path)
    await engine.start()
    description = engine.describe()
    assert engine.alive()
    assert engine.url == f"http://127.0.0.1:{description['port']}"
    assert description["command"][0] == sys.executable
    assert str(description["port"]) in description["command"]
    assert "listening" in (tmp_path / "server.log").read_text()
    await engine.stop()
    assert not engine.alive()
    assert await gone(description["pid"], within_s=0)
    await engine.stop()


async def test_an_engine_can_be_started_again_and_its_tail_shows_the_new_start_only(settings, tmp_path) -> None:
    engine = server(settings(), tmp_path)
    for _ in range(2):
        await engine.start()
        assert engine.log_tail() == ["listening"]
        await engine.stop()
    assert (tmp_path / "server.log").read_text() == "listening\n" * 2


async def test_stopping_before_the_start_does_nothing(settings, tmp_path) -> None:
    engine = server(settings(), tmp_path)
    await engine.stop()
    assert not engine.alive()
    assert engine.log_tail() == []


async def test_an_engine_that_dies_at_its_start_shows_exit_code_and_log(settings, tmp_path) -> None:
    engine = server(settings("dies"), tmp_path)
    with pytest.raises(EngineError, match=r"(?s)exit code 7.*no such model: tiny") as failure:
        await engine.start()
    assert failure.value.kind == "start"
    assert not engine.alive()


async def test_an_engine_that_never_gets_healthy_is_stopped_with_advice(settings, tmp_path) -> None:
    engine = server(settings("silent", start_timeout_s=0.5, stop_grace_s=0.1), tmp_path)
    with pytest.raises(EngineError, match=r"within 0\.5 s.*raise engine\.start_timeout_s") as failure:
        await engine.start()
    assert failure.value.kind == "start"
    assert await gone(engine.describe()["pid"], within_s=0)


async def test_a_crash_while_it_runs_is_noticed(settings, tmp_path) -> None:
    engine = server(settings("crashes"), tmp_path)
    await engine.start()
    assert await gone(engine.describe()["pid"])
    assert await until(lambda: not engine.alive())
    await engine.stop()


async def test_a_stop_reaches_helpers_in_other_sessions_that_ignore_sigterm(settings, tmp_path) -> None:
    engine = server(settings("stubborn", stop_grace_s=0.2), tmp_path)
    await engine.start()
    helper = helper_of(engine)
    await engine.stop()
    assert await gone(engine.describe()["pid"], helper, within_s=0)


async def test_a_cancelled_start_leaves_nothing(settings, tmp_path) -> None:
    engine = server(settings("silent", stop_grace_s=0.1), tmp_path)
    start = asyncio.create_task(engine.start())
    assert await until(lambda: engine.describe()["pid"] is not None)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert await gone(engine.describe()["pid"], within_s=0)


HARNESS = """
import asyncio, json, sys
from pathlib import Path
from engines.process import ProcessServer
from engines.settings import EngineSettings

async def main():
    settings = EngineSettings(**json.loads(sys.argv[1]))
    engine = ProcessServer(settings, model=None, folder=Path(sys.argv[2]), environment={})
    await engine.start()
    helper = next(line.split()[1] for line in engine.log_tail() if line.startswith("helper"))
    print(engine.describe()["pid"], helper, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_nothing_outlives_a_harness_that_is_killed(settings, tmp_path, number) -> None:
    arguments = [json.dumps(asdict(settings("stubborn", stop_grace_s=60.0))), str(tmp_path)]
    harness = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HARNESS,
        *arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
    )
    assert harness.stdout is not None
    pids = [int(word) for word in (await harness.stdout.readline()).split()]
    assert len(pids) == 2
    os.kill(harness.pid, number)
    await harness.wait()
    assert await gone(*pids)


async def test_the_engine_dies_with_its_guard(settings, tmp_path) -> None:
    engine = server(settings(), tmp_path)
    await engine.start()
    pid = engine.describe()["pid"]
    psutil.Process(pid).parent().kill()
    assert await gone(pid)
    await engine.stop()


async def test_a_taken_port_is_named(settings, tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(EngineError, match=rf"port {port}: .*set engine\.port"):
            await server(settings(port=port), tmp_path).start()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"command": []}, r"engine\.command is empty"),
        ({"command": ["no-such-engine"]}, r"engine\.command: there is no no-such-engine"),
        (
            {"command": ["{binary}"], "binary": "build/none/llama-server", "dialect": "llamacpp"},
            r"engine\.binary: there is no build/none/llama-server; run `make llama-server`, or set engine\.binary",
        ),
        ({"command": ["{binary}"]}, r"nothing fills \{binary\}.*set engine\.binary"),
        ({"command": ["{python}", "{model}"]}, r"nothing fills \{model\}.*engine\.model_format"),
        ({"command": ["{python}", "{speed}"]}, r"nothing fills \{speed\}.*engine\.options\.speed"),
        ({"command": ["{python}", "{"]}, r"engine\.command: '\{'.*for plain braces"),
        ({"env": {"A": "{nothing}"}}, r"engine\.env\.A: nothing fills \{nothing\}"),
    ],
)
async def test_settings_that_cannot_work_are_named(settings, tmp_path, changes, says) -> None:
    with pytest.raises(EngineError, match=says) as failure:
        await server(settings(**changes), tmp_path).start()
    assert failure.value.kind == "setting"


async def test_a_file_that_may_not_be_executed_is_named(settings, tmp_path) -> None:
    program = tmp_path / "server"
    program.write_text("#!/bin/sh\n")
    with pytest.raises(EngineError, match=rf"engine\.binary: {program} may not be executed; chmod \+x"):
        await server(settings(command=["{binary}"], binary=str(program)), tmp_path).start()


async def test_a_program_that_cannot_be_run_says_why(settings, tmp_path) -> None:
    program = tmp_path / "server"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    with pytest.raises(EngineError, match=r"could not be run: No such file or directory") as failure:
        await server(settings(command=[str(program)]), tmp_path).start()
    assert failure.value.kind == "start"


async def test_the_environment_joins_the_preloads_and_fills_placeholders(settings, tmp_path, monkeypatch) -> None:
    libc = "libc.so.6"
    monkeypatch.setenv("LD_PRELOAD", libc)
    changes = {"env": {"FLAVOUR": "{taste}"}, "options": {"taste": "sour"}}
    engine = server(settings("environment", **changes), tmp_path, LD_PRELOAD="libm.so.6", PLAN="here")
    await engine.start()
    assert engine.log_tail()[0] == str({"LD_PRELOAD": f"libm.so.6:{libc}", "FLAVOUR": "sour", "PLAN": "here"})
    await engine.stop()


async def test_the_version_is_what_the_binary_answers(settings, tmp_path) -> None:
    program = tmp_path / "server"
    program.write_text(
        '#!/bin/sh\nif [ "$1" = --version ]; then echo "version: 9"; echo built; exit; fi\n'
        f'exec {sys.executable} -S {tmp_path}/engine.py "$1" good\n'
    )
    program.chmod(0o755)
    engine = server(settings(command=["{binary}", "{port}"], binary=str(program)), tmp_path)
    await engine.start()
    assert engine.describe()["version"] == "version: 9; built"
    await engine.stop()


async def test_a_script_that_does_not_answer_its_version_leaves_no_child(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("engines.process._VERSION_TIMEOUT_S", 0.3)
    program = tmp_path / "server"
    program.write_text(f"#!/bin/sh\nsleep 1000 &\necho $! > {tmp_path}/child\nwait\n")
    program.chmod(0o755)
    assert await _version(str(program), dict(os.environ)) is None
    assert await gone(int((tmp_path / "child").read_text()))


@pytest.mark.parametrize("port", [99999, -1])
async def test_a_number_that_is_no_port_is_named(settings, tmp_path, port) -> None:
    with pytest.raises(EngineError, match=rf"engine\.port={port} is no port; set 1 to 65535"):
        await server(settings(port=port), tmp_path).start()
