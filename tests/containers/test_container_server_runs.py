"""ContainerServer on a real daemon, around a few lines of Python in the base image."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import psutil
import pytest

from engines.base import EngineError, Mount
from engines.container.orphans import Owner
from engines.container.server import ContainerServer
from engines.settings import ContainerSettings, EngineSettings

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

BASE = "ostinato-base:bookworm"
# Says what it may do, then answers every request with 200.
ENGINE = """
import os, pathlib, signal, socket, subprocess, sys, time
host, port, habit = sys.argv[1], int(sys.argv[2]), sys.argv[3]
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
print("may", os.getuid(), *(status[name].strip() for name in ("CapEff", "CapBnd", "NoNewPrivs")), flush=True)
def writes(path):
    try:
        pathlib.Path(path).write_text("written")
    except OSError as error:
        return error.strerror
    return "yes"
print("root", writes("/written"), flush=True)
pathlib.Path("/tmp/run").write_text("#!/bin/sh\\necho runs\\n")
os.chmod("/tmp/run", 0o755)
print("tmp", subprocess.run(["/tmp/run"], capture_output=True, text=True).stdout.strip(), flush=True)
for path in sys.argv[4:]:
    print("path", path, writes(path), flush=True)
if habit == "dies":
    sys.exit(7)
if habit == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
listener = socket.create_server((host, port))
while True:
    connection, _ = listener.accept()
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
    connection.close()
"""


@pytest.fixture
def settings(image: Any, left: Any, tmp_path: Path) -> Callable[..., EngineSettings]:
    image(BASE)
    tmp_path.chmod(0o755)
    program = tmp_path / "engine.py"
    program.write_text(ENGINE)

    def made(habit: str = "good", *paths: str, **container: Any) -> EngineSettings:
        return EngineSettings(
            name="tested",
            label="Tested",
            dialect="ostinato",
            forcing="none",
            launch="container",
            command=["{python}", "-S", "/engine.py", "{host}", "{port}", habit, *paths],
            start_timeout_s=60.0,
            stop_grace_s=1.0,
            container=ContainerSettings(image=BASE, mounts={str(program): "/engine.py"}, **container),
        )

    return made


@asynccontextmanager
async def running(server: ContainerServer) -> AsyncIterator[ContainerServer]:
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


def learnt(folder: Path) -> list[Path]:
    return list(folder.rglob("learnt"))


def said(server: ContainerServer, word: str) -> list[str]:
    return [line.removeprefix(f"{word} ") for line in server.log_tail() if line.startswith(f"{word} ")]


async def test_the_engine_runs_with_no_rights_and_can_write_to_tmp_alone(
    settings: Callable[..., EngineSettings], tmp_path: Path
) -> None:
    async with running(ContainerServer(settings(), model=None, folder=tmp_path, environment={})) as server:
        user = os.getuid() or 65534
        assert said(server, "may") == [f"{user} 0000000000000000 0000000000000000 1"]
        assert said(server, "root") == ["Read-only file system"]
        assert said(server, "tmp") == ["runs"]


async def test_model_and_mounts_are_read_only_and_what_forcing_shares_is_not(
    settings: Callable[..., EngineSettings], tmp_path: Path
) -> None:
    model = tmp_path / "tiny.gguf"
    shared, fixed = tmp_path / "plan", tmp_path / "force.so"
    for path in (model, shared, fixed):
        path.write_text("mine")
    engine = settings("good", "{model}", str(shared), str(fixed), "{state}/learnt")
    mounts = (Mount(path=shared, writable=True), Mount(path=fixed))
    server = ContainerServer(engine, model=model, folder=tmp_path, environment={}, mounts=mounts)
    async with running(server):
        read_only = "Read-only file system"
        assert said(server, "path") == [
            f"/model/tiny.gguf {read_only}",
            f"{shared} yes",
            f"{fixed} {read_only}",
            "/state/learnt yes",
        ]
    assert (model.read_text(), shared.read_text(), fixed.read_text()) == ("mine", "written", "mine")
    assert [path.read_text() for path in learnt(tmp_path)] == ["written"]


async def test_it_is_described_by_image_command_and_process_and_gone_when_stopped(
    settings: Callable[..., EngineSettings], tmp_path: Path, client: docker.DockerClient, left: Any
) -> None:
    server = ContainerServer(settings(), model=None, folder=tmp_path, environment={})
    for _ in range(2):  # it can be started again
        async with running(server):
            described = server.describe()
            (container,) = left()
            assert described["container"] == container.name
            assert described["digest"] == client.images.get(BASE).id
            assert described["command"] == [
                "python3",
                "-S",
                "/engine.py",
                "127.0.0.1",
                str(described["port"]),
                "good",
            ]
            assert psutil.pid_exists(described["pid"])
            assert described["created"]["cap_drop"] == ["ALL"]
            assert server.alive()
            assert await server.ended() is None
        assert left() == []
        assert not server.alive()
    await server.stop()


async def test_an_engine_that_ignores_sigterm_is_killed_after_the_grace(
    settings: Callable[..., EngineSettings], tmp_path: Path, left: Any
) -> None:
    async with running(ContainerServer(settings("stubborn"), model=None, folder=tmp_path, environment={})):
        pass
    assert left() == []


async def test_an_engine_that_dies_at_its_start_shows_exit_code_and_log(
    settings: Callable[..., EngineSettings], tmp_path: Path, left: Any
) -> None:
    server = ContainerServer(settings("dies"), model=None, folder=tmp_path, environment={})
    with pytest.raises(EngineError, match=r"(?s)ended at its start \(exit code 7\).*tmp runs") as failure:
        await server.start()
    assert failure.value.kind == "start"
    assert left() == []


async def test_a_start_that_is_cancelled_leaves_nothing(
    settings: Callable[..., EngineSettings], tmp_path: Path, left: Any
) -> None:
    engine = settings()
    engine.health = "/health"
    for wait_s in (0.02, 0.3):
        server = ContainerServer(engine, model=None, folder=tmp_path, environment={})
        task = asyncio.create_task(server.start())
        await asyncio.sleep(wait_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.stop()
        assert left() == []


async def test_a_bridge_reaches_the_engine_through_the_published_port(
    settings: Callable[..., EngineSettings], tmp_path: Path, client: docker.DockerClient
) -> None:
    if not client.networks.list(names=["bridge"]):
        pytest.skip("this daemon runs without its bridge network")
    server = ContainerServer(settings(network="bridge"), model=None, folder=tmp_path, environment={})
    async with running(server):
        assert "0.0.0.0" in server.describe()["command"]


async def test_limits_reach_the_container(settings: Callable[..., EngineSettings], tmp_path: Path, left: Any) -> None:
    limits = {
        "memory": "256m",
        "shm_size": "128m",
        "cpuset_cpus": "0",
        "cpuset_mems": "0",
        "ulimits": {"nofile": 512},
    }
    async with running(ContainerServer(settings(**limits), model=None, folder=tmp_path, environment={})):
        (container,) = left()
        host = container.attrs["HostConfig"]
        assert (host["Memory"], host["ShmSize"]) == (256 << 20, 128 << 20)
        assert (host["CpusetCpus"], host["CpusetMems"]) == ("0", "0")
        assert host["Ulimits"] == [{"Name": "nofile", "Soft": 512, "Hard": 512}]


async def test_a_start_removes_orphans_and_nothing_else(
    settings: Callable[..., EngineSettings], tmp_path: Path, client: docker.DockerClient, left: Any
) -> None:
    here = Owner.this_process()
    run = tmp_path / "run"
    run.mkdir()
    owners = {"orphan": replace(here, start=here.start - 1), "mine": here, "elsewhere": replace(here, host="far")}
    made = {
        name: client.containers.run(
            BASE, ["sleep", "600"], detach=True, init=True, labels=owner.labels(tmp_path / name)
        )
        for name, owner in owners.items()
    }
    async with running(ContainerServer(settings(), model=None, folder=run, environment={})) as server:
        assert server.describe()["removed_orphans"] == [made["orphan"].name]
    assert {container.id for container in left()} == {made["mine"].id, made["elsewhere"].id}
