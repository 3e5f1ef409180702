"""The import hooks on stand-ins of SGLang and FreeToken, loaded as in an image: by PYTHONPATH and ``sitecustomize``.

``standins/`` holds what the hooks wrap and call, laid out as in the releases that the hooks name, around a sampler
that draws tokens of its own. The engines themselves need a GPU and are not run here.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engines.base import EngineError, ForcedRequest
from engines.client import EngineClient
from engines.dialects.registry import dialect
from engines.fake.server import FakeSettings, in_thread
from engines.forcing.hook import HOOKS, HookForcing
from engines.forcing.self_test import self_test
from engines.process import ProcessServer
from engines.settings import EngineSettings

STANDINS = Path(__file__).with_name("standins")
PROGRAMS = {"sglang": "sglang.launch_server", "freetoken": "freetoken.serve"}
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch (extra: ostinato)")


def settings(name: str, **changes: object) -> EngineSettings:
    given = {
        "name": name,
        "label": name,
        "dialect": name,
        "forcing": "hook",
        "command": ["{python}", "-m", PROGRAMS.get(name, name), "--port", "{port}"],
        "env": {"PYTHONPATH": str(STANDINS), "OMP_NUM_THREADS": "1"},
        "context": 512,
    }
    return EngineSettings(**{**given, **changes})  # type: ignore[arg-type]


@asynccontextmanager
async def running(engine: EngineSettings, folder: Path) -> AsyncIterator[EngineClient]:
    force = HookForcing(engine, folder)
    server = ProcessServer(engine, model=None, folder=folder, environment=force.environment())
    try:
        await server.start()
        async with EngineClient(
            server.url, dialect(engine.dialect), force, request_timeout_s=60, stall_timeout_s=60
        ) as client:
            yield client
    finally:
        await server.stop()
        force.close()


@needs_torch
@pytest.mark.anyio
@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_wrapped_sampler_gives_the_recorded_tokens_by_their_positions(name: str, tmp_path: Path) -> None:
    async with running(settings(name), tmp_path) as client:
        await self_test(client, 512)
        prompt = tuple(range(100, 170))  # several chunks of prefill
        for output in ((3, 0, 511, 7, 7, 7), (5,), (3, 0, 511, 7, 7, 8)):  # the plan may look alike twice
            request = ForcedRequest(prompt_ids=prompt, output_ids=output)
            reply = await client.turn(request)
            assert reply.verified_by == "ids"
            assert tuple(id_ for chunk in reply.chunks for id_ in chunk.ids) == output
            assert [chunk.n_tokens for chunk in reply.chunks] == [1] * len(output)
            assert (reply.report.cached_tokens, reply.report.prefilled_tokens) == (0, 70)
            assert reply.report.generated_tokens == len(output)
        with pytest.raises(EngineError, match=r"set engine\.context=513 or more"):
            await client.turn(ForcedRequest(prompt_ids=(1,) * 512, output_ids=(1,)))


@pytest.mark.anyio
async def test_a_server_without_the_hook_is_found_out_at_its_first_turn(tmp_path: Path) -> None:
    force = HookForcing(settings("sglang"), tmp_path)
    with in_thread(FakeSettings()) as engine:
        async with EngineClient(
            engine.url, dialect("sglang"), force, request_timeout_s=60, stall_timeout_s=60
        ) as client:
            with pytest.raises(EngineError, match=r"loaded no sampler that engine\.forcing=hook wraps"):
                await self_test(client, 512)
    force.close()


def python(code: str, force: HookForcing, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | variables | force.environment()
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def test_the_sitecustomize_that_the_hook_hides_runs_too(tmp_path: Path) -> None:
    force = HookForcing(settings("sglang"), tmp_path)
    ran = python("import os; print(os.environ['STANDIN_SITECUSTOMIZE'])", force)
    assert ran.stdout == "ran\n", ran.stderr
    force.close()


def test_a_version_that_the_hook_does_not_know_does_not_start(tmp_path: Path) -> None:
    package = tmp_path / "freetoken" / "tokenizer"
    package.mkdir(parents=True)
    for folder in package, package.parent:
        (folder / "__init__.py").touch()
    (package / "server.py").write_text("def _admitted(): ...\n")
    force = HookForcing(settings("freetoken", env={"PYTHONPATH": str(tmp_path)}), tmp_path)
    ran = python("import freetoken.tokenizer.server", force)
    assert ran.returncode
    assert "this version of freetoken.tokenizer.server is not known" in ran.stderr
    force.close()


def test_programs_that_are_no_engine_run_as_ever(tmp_path: Path) -> None:
    force = HookForcing(settings("sglang", env={}), tmp_path)
    ran = python("import json, sys; print(json.dumps('ostinato_forcing_sglang' in sys.modules))", force)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "false\n", "")
    force.close()


def test_the_hooks_import_nothing_of_this_project(tmp_path: Path) -> None:
    for file in HOOKS.glob("*.py"):
        lines = file.read_text().splitlines()
        assert not [line for line in lines if line.startswith(("from engines", "import engines"))]


def test_a_container_sees_a_copy_of_the_hooks_read_only_and_the_plan(tmp_path: Path) -> None:
    force = HookForcing(settings("sglang", launch="container"), tmp_path)
    hooks, plan = force.mounts()
    environment = force.environment()
    assert (hooks.writable, plan.writable) == (False, True)
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(hooks.path), str(STANDINS)]
    assert environment["OSTINATO_FORCE_PLAN"] == str(plan.path)
    assert {file.name for file in hooks.path.iterdir()} == {file.name for file in HOOKS.glob("*.py")}
    force.close()
    assert not hooks.path.exists()


def test_a_server_of_somebody_else_cannot_be_hooked(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"engine\.forcing=hook needs engine\.launch=process or container"):
        HookForcing(settings("sglang", launch="attach"), tmp_path)
