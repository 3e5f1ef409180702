"""What the files in ``conf/engine`` say of each engine, as a process and in its container."""

from collections.abc import Mapping

import pytest

from engines.container import spec
from engines.dialects.registry import dialect
from engines.forcing.registry import _WAYS as WAYS
from engines.placeholders import used_names
from engines.settings import EngineSettings
from engines.state import keeps_state
from replay.config import choices, composed, each_engine

EVERY = choices("engine")
SYSTEMS = ["ostinato", "llamacpp_layers", "llamacpp_cache", "ik_llamacpp", "buun", "ktransformers", "freetoken"]
BRING_AN_IMAGE = {"buun", "atsinfer", "wisp", "colibri", "fake", "openai"}
"""Engines that publish none and that docker/ builds none for."""


@pytest.fixture(scope="module")
def alone() -> Mapping[str, EngineSettings]:
    return {name: config.engine for name, config in each_engine([]).items()}


@pytest.fixture(scope="module")
def inside() -> Mapping[str, EngineSettings]:
    """In containers on the workstation of the paper."""
    configs = each_engine(["launch=container", "hardware=rtx4090d_x4"])
    return {name: config.engine for name, config in configs.items()}


def test_all_engines_at_once_are_what_they_are_one_by_one(inside: Mapping[str, EngineSettings]) -> None:
    assert list(inside) == EVERY
    for name in ("ik_llamacpp", "vllm"):
        assert inside[name] == composed([f"engine={name}", "launch=container", "hardware=rtx4090d_x4"]).engine


@pytest.mark.parametrize("name", EVERY)
def test_every_option_is_used_and_the_one_to_size_is_an_option(
    name: str, alone: Mapping[str, EngineSettings]
) -> None:
    engine = alone[name]
    assert set(engine.options) <= used_names(engine)
    assert engine.capacity.option is None or engine.capacity.option in engine.options


@pytest.mark.parametrize("name", EVERY)
def test_dialect_and_forcing_are_known(
    name: str, alone: Mapping[str, EngineSettings], inside: Mapping[str, EngineSettings]
) -> None:
    for engine in (alone[name], inside[name]):
        assert dialect(engine.dialect).name == engine.dialect
        assert engine.forcing in WAYS


@pytest.mark.parametrize("name", EVERY)
def test_the_container_is_asked_for_with_the_gpus_and_cores_of_the_hardware(
    name: str, inside: Mapping[str, EngineSettings]
) -> None:
    engine = inside[name]
    assert (engine.container.image is None) == (name in BRING_AN_IMAGE)
    engine.container.image = engine.container.image or "mine:1"
    place = spec.Place(name="c", port=8123, labels={}, user=(1000, 1000), model="/model/m", state=keeps_state(engine))
    asked = spec.arguments(engine, place)
    words = [*asked.get("entrypoint", ()), *asked["command"]]
    assert not any("{" in word for word in words)
    if engine.command:
        assert "8123" in words
        assert engine.model_format == "none" or "/model/m" in words
    if engine.needs_gpu or engine.container.gpus:
        assert asked["device_requests"][0]["DeviceIDs"] == ["0", "1", "2", "3"]
        assert (asked["cpuset_cpus"], asked["cpuset_mems"]) == ("0-23,32-55", "0,1")
        assert asked["ulimits"] == [{"Name": "memlock", "Soft": -1, "Hard": -1}]


@pytest.mark.parametrize("name", EVERY)
def test_an_engine_whose_program_is_the_entry_point_is_not_given_it_twice(
    name: str, inside: Mapping[str, EngineSettings]
) -> None:
    engine = inside[name]
    if engine.container.entrypoint and name != "ik_llamacpp":
        assert spec.command(engine) == engine.command[1:]


@pytest.mark.parametrize("name", EVERY)
def test_a_server_of_the_llama_family_runs_one_slot_that_forcing_can_follow(
    name: str, inside: Mapping[str, EngineSettings]
) -> None:
    engine = inside[name]
    if engine.forcing == "shim":
        words = spec.command(engine)
        assert words[words.index("--parallel") + 1] == "1"


def test_the_sweep_of_every_system_is_one_of_containers(inside: Mapping[str, EngineSettings]) -> None:
    engines = [inside[name] for name in SYSTEMS]
    assert {engine.launch for engine in engines} == {"container"}
    assert [engine.name for engine in engines] == SYSTEMS


def test_in_its_container_ik_llamacpp_is_its_own_server(
    alone: Mapping[str, EngineSettings], inside: Mapping[str, EngineSettings]
) -> None:
    library, server = alone["ik_llamacpp"], inside["ik_llamacpp"]
    assert (library.launch, library.dialect, library.forcing) == ("process", "ostinato", "field")
    assert (server.dialect, server.forcing, server.note) == ("llamacpp", "shim", "")
    assert server.options["server_threads"] == "48"


@pytest.mark.parametrize(
    ("name", "variable"),
    [("buun", "LLAMA_CACHE"), ("freetoken", "FREETOKEN_BENCHBW_PATH"), ("colibri", "COLI_USAGE")],
)
def test_what_an_engine_learns_is_kept_in_a_state_of_the_runs_own(
    name: str, variable: str, inside: Mapping[str, EngineSettings]
) -> None:
    assert inside[name].env[variable].startswith("{state}")
    assert keeps_state(inside[name])
    assert inside[name].state == "cold"


def test_no_engine_that_learns_changes_what_the_model_computes(inside: Mapping[str, EngineSettings]) -> None:
    buun, kt = spec.command(inside["buun"]), spec.command(inside["ktransformers"])
    assert [buun[buun.index(flag) + 1] for flag in ("--cache-type-k", "--cache-type-v")] == ["f16", "f16"]
    assert kt[kt.index("--kt-max-deferred-experts-per-token") + 1] == "0"
