"""``engines doctor``: what it finds, what it advises, and how it exits."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.settings import ContainerSettings, EngineSettings
from replay.config import choices, each_engine
from replay.doctor.engine import engine_findings, recorded, room, wants_gpu
from replay.doctor.finding import NOT_RUN, Finding, can_run
from replay.doctor.machine import UNLIMITED, disk, governor, gpu, machine_findings, memlock, memory, numa
from replay.machine import machine
from replay.model import ModelSettings

Engines = Callable[..., Any]
Card = tuple[str, int, int]
TINY = ModelSettings(name="tiny", synthetic=None)
CARD = ("RTX 4090D", 23_000, 24_564)


def engine(**changes: object) -> EngineSettings:
    fields = {"name": "x", "label": "x", "dialect": "ostinato", "forcing": "field", "model_format": "none"}
    return EngineSettings(**{**fields, "command": ["{python}"], **changes})  # type: ignore[arg-type]


def found(
    settings: EngineSettings, tmp_path: Path, *, model: ModelSettings = TINY, gpus: object = ()
) -> list[Finding]:
    return engine_findings(settings, model, results=tmp_path, machine="m", gpus=gpus)  # type: ignore[arg-type]


def states(findings: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.state for finding in findings}


def row(out: str, check: str) -> str:
    (line,) = [line for line in out.splitlines() if line.startswith(f"│ {check} ")]
    return line


def test_an_engine_that_can_run_is_started_and_forced(engines: Engines) -> None:
    done = engines("doctor", "engine=fake")
    assert done.code == 0, done.err
    assert "exactly the forced tokens came back (verified by ids)" in row(done.out, "forcing self-test")
    assert "│ ok" in row(done.out, "program")
    assert "It can run here." in done.out


def test_without_a_start_nothing_is_forced(engines: Engines) -> None:
    done = engines("doctor", "engine=fake", "--no-start")
    assert done.code == 0
    assert "forcing self-test" not in done.out


def test_an_engine_that_emits_other_tokens_fails_the_self_test(engines: Engines) -> None:
    words = ["{python}", "-m", "engines.fake", "--port", "{port}", "--fault=wrong_token"]
    done = engines("doctor", "engine=fake", f"engine.command=[{','.join(repr(word) for word in words)}]")
    assert done.code == 1
    assert "self-test of forced tokens failed" in row(done.out, "forcing self-test")
    assert "It can't run here: forcing self-test." in done.out


def test_a_missing_program_is_named_and_nothing_is_started(engines: Engines) -> None:
    done = engines("doctor", "engine=llama_server", "engine.binary=/no/such/server")
    assert done.code == 1
    assert "there is no /no/such/server" in row(done.out, "program")
    assert "set engine.binary, or launch=container" in row(done.out, "program")
    assert "forcing self-test" not in done.out


def test_where_no_docker_answers_its_advice_says_how_to_get_on(engines: Engines) -> None:
    done = engines("doctor", "engine=llama_server", "launch=container")
    assert done.code == 1
    assert "no daemon answers" in row(done.out, "Docker")
    assert "launch=process" in row(done.out, "Docker")


def test_every_engine_that_needs_a_gpu_is_marked_until_it_was_run(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replay.doctor.machine.gpus", list)
    done = engines("doctor")
    assert done.code == 0  # it was asked about no engine
    every = each_engine([])
    assert list(every) == choices("engine")
    for name, config in every.items():
        assert (NOT_RUN in row(done.out, name)) == config.engine.needs_gpu
    assert "│ ok" in row(done.out, "ostinato")


def test_several_engines_are_looked_at_and_not_started(engines: Engines) -> None:
    done = engines("doctor", "engine=fake,openai")
    assert done.code == 1
    assert "nothing stands in its way" in row(done.out, "fake")
    assert "engine.url is not set" in row(done.out, "openai")
    assert "forcing self-test" not in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["doctor", "engine=vroom"], "Could not find 'engine/vroom'"),
        (["doctor", "engine=7"], "engine=7 names no engine"),
        (["doctor", "--fast"], "--fast is no flag of doctor"),
        (["cure"], "there is no command 'cure'; choose one of doctor, fit"),
    ],
)
def test_what_is_asked_wrongly_is_one_line(engines: Engines, arguments: list[str], message: str) -> None:
    done = engines(*arguments)
    assert done.code == 2
    assert done.err.startswith("engines: ")
    assert message in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["--help"], 0), (["fit", "-h"], 0)])
def test_help_has_examples(engines: Engines, arguments: list[str], code: int) -> None:
    done = engines(*arguments)
    assert done.code == code
    assert "  engines doctor engine=llama_server\n" in done.out
    assert all(len(line) <= 120 for line in done.out.splitlines())


def test_an_engine_that_needs_a_gpu_can_not_run_without_one(tmp_path: Path) -> None:
    findings = found(engine(needs_gpu=True), tmp_path)
    assert states(findings) == {"GPU": "failed", "runs of it on this machine": NOT_RUN, "program": "ok"}
    assert not can_run(findings)


def test_with_a_gpu_it_can_run_and_is_marked_as_never_run(tmp_path: Path) -> None:
    findings = found(engine(needs_gpu=True), tmp_path, gpus=[CARD])
    assert states(findings) == {"runs of it on this machine": NOT_RUN, "program": "ok"}
    assert can_run(findings)


def test_a_container_with_gpus_wants_one_and_the_same_engine_as_a_process_does_not() -> None:
    inside = ContainerSettings(gpus="all")
    assert wants_gpu(engine(launch="container", container=inside))
    assert not wants_gpu(engine(launch="process", container=inside))


def result(folder: Path, *, status: str = "complete", gpus: object = ({"name": "x"},), machine: str = "m") -> None:
    folder.mkdir(parents=True)
    environment = {"machine": machine, "gpus": gpus}
    written = {"version": 1, "engine": {"name": "x"}, "status": status, "environment": environment}
    (folder / "result.json").write_text(json.dumps(written | {"sessions": {}, "workload": {}, "model": {}}))


def test_a_complete_run_with_a_gpu_of_this_machine_takes_the_mark_away(tmp_path: Path) -> None:
    result(tmp_path / "a/t/x")
    findings = found(engine(needs_gpu=True), tmp_path, gpus=[CARD])
    assert NOT_RUN not in states(findings).values()
    assert str(tmp_path / "a/t/x") in {finding.found for finding in findings}


@pytest.mark.parametrize(
    "other", [{"status": "failed"}, {"gpus": None}, {"machine": "other"}], ids=["failed", "no GPU", "elsewhere"]
)
def test_another_run_does_not(tmp_path: Path, other: dict[str, object]) -> None:
    result(tmp_path / "a/t/x", **other)  # type: ignore[arg-type]
    assert recorded(tmp_path, "x", "m") is None


def test_a_port_that_somebody_holds_is_named(tmp_path: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        findings = found(engine(port=held.getsockname()[1]), tmp_path)
    assert states(findings)["port"] == "failed"


def test_a_model_that_is_not_there_or_not_in_its_format_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"x")
    loads = engine(model_format="gguf")
    assert states(found(loads, tmp_path, model=ModelSettings(name="m", gguf="nowhere.gguf")))["model"] == "failed"
    assert states(found(loads, tmp_path, model=ModelSettings(name="m", path=str(tmp_path))))["model"] == "failed"
    findings = states(found(loads, tmp_path, model=ModelSettings(name="m", gguf=str(file))))
    assert findings == {"program": "ok", "model": "ok", "room for the model": "ok"}


@pytest.mark.parametrize(
    ("gib", "gpus", "state"), [(20, [], "failed"), (20, [CARD], "ok"), (10, [], "ok"), (40, [CARD], "failed")]
)
def test_a_model_must_fit_into_what_the_host_and_the_gpus_hold_together(
    gib: int, gpus: list[Card], state: str
) -> None:
    (finding,) = room(gib * 2**30, 12 * 2**30, gpus)
    assert finding.state == state


def test_a_state_that_can_not_be_started_from_is_named(tmp_path: Path) -> None:
    findings = found(engine(state="warm:nowhere", env={"CACHE": "{state}"}), tmp_path)
    assert states(findings)["state"] == "failed"


@pytest.mark.parametrize(
    ("finding", "state", "advice"),
    [
        (gpu([]), "ok", ""),
        (gpu([CARD]), "ok", ""),
        (gpu([("RTX 4090D", 12_000, 24_564)]), "advice", "another program holds GPU memory"),
        (memory(10, 12), "ok", ""),
        (memory(5, 12), "advice", "other programs hold most of the memory"),
        (numa({"numa_nodes": 2, "numa_balancing": "1"}), "advice", "sysctl kernel.numa_balancing=0"),
        (numa({"numa_nodes": 2, "numa_balancing": "0"}), "ok", ""),
        (numa({"numa_nodes": 1, "numa_balancing": "1"}), "ok", ""),
        (governor({"governor": "powersave"}), "advice", "cpupower"),
        (governor({"governor": "performance"}), "ok", ""),
        (governor({"governor": None}), "ok", ""),
        (memlock(8 * 2**20), "advice", "ulimit -l unlimited"),
        (memlock(UNLIMITED), "ok", ""),
    ],
)
def test_what_the_machine_tells_is_judged(finding: Finding, state: str, advice: str) -> None:
    assert finding.state == state
    assert finding.advice.startswith(advice)
    assert bool(finding.advice) == (state != "ok")


def test_a_full_disk_fails_and_a_folder_that_is_not_there_yet_is_judged_by_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(tmp_path) in disk(tmp_path / "results/later").found
    for free, state in ((10, "failed"), (5 * 1024**3, "advice"), (10**12, "ok")):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: type("Usage", (), {"free": free}))
        assert disk(tmp_path).state == state


def test_this_machine_is_told_whole(tmp_path: Path) -> None:
    checks = [finding.check for finding in machine_findings(tmp_path)]
    assert checks == [
        "GPUs", "memory", "NUMA balancing", "CPU governor", "memlock limit", "disk", "forcing library",
    ]  # fmt: skip
    assert machine()["memory_bytes"] > 0
