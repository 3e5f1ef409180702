"""Every file in ``conf/`` fits the schema, and nothing else does."""

import shlex
from dataclasses import asdict
from functools import cache

import pytest
import yaml
from hydra import compose
from hydra.errors import ConfigCompositionException, MissingConfigException
from omegaconf.errors import ConfigKeyError, ValidationError

from engines.hardware import HardwareSettings
from engines.settings import EngineSettings
from replay.config import CONF, Config, checked, row_folder, unused_option
from replay.model import ModelSettings
from replay.pacing import ArrivalSettings
from replay.pressure import PressureSettings
from workloads.settings import WorkloadSettings

GROUPS = {
    "engine": EngineSettings,
    "workload": WorkloadSettings,
    "model": ModelSettings,
    "arrival": ArrivalSettings,
    "pressure": PressureSettings,
    "hardware": HardwareSettings,
}
FILES = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]


pytestmark = pytest.mark.usefixtures("hydra")


@cache
def composed(*overrides: str) -> Config:
    return checked(compose("config", list(overrides)))


MAY_BE_LEFT_OUT = {
    "engine": {"binary", "container", "env", "launch", "options", "port", "state", "stop_grace_s", "url"}
    | {"request_timeout_s", "stall_timeout_s", "start_timeout_s", "context", "threads", "needs_gpu", "capacity"}
    | {"cache_block_tokens", "served_model"},
}
"""Fields that most files of a group would only repeat; ``--cfg job`` shows them with the schema's values."""


@pytest.mark.parametrize(("group", "name"), FILES)
def test_the_file_fits_the_schema_lists_every_field_and_says_its_name(group: str, name: str) -> None:
    whole = compose("config", [f"{group}={name}"])
    settings = getattr(checked(whole), group)
    assert isinstance(settings, GROUPS[group])
    assert settings.name == name
    fields = set(asdict(settings))
    assert set(whole[group]) == fields
    written = set(yaml.safe_load((CONF / group / f"{name}.yaml").read_text()))
    assert written <= fields
    assert fields - written <= MAY_BE_LEFT_OUT.get(group, set())


def test_the_engines_workloads_and_models_that_the_readme_names_are_there() -> None:
    assert {("engine", name) for name in ("ostinato", "llamacpp", "ik_llamacpp", "llama_server", "fake")} <= set(
        FILES
    )
    assert {("workload", name) for name in ("sample", "sessions", "synthetic", "tau2", "openhands")} <= set(FILES)
    assert ("model", "tiny") in FILES


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(ConfigCompositionException, match=r"engine\.colour"):
        composed("engine.colour=red")


def test_an_unknown_key_with_a_plus_sign_is_refused() -> None:
    with pytest.raises(ConfigKeyError, match="'colour' not in 'EngineSettings'"):
        composed("+engine.colour=red")


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigCompositionException) as caught:
        composed("engine.threads=many")
    assert isinstance(caught.value.__cause__, ValidationError)


def test_an_unknown_choice_is_refused_with_the_known_ones() -> None:
    with pytest.raises(MissingConfigException, match=r"engine/vroom(.|\n)*fake"):
        composed("engine=vroom")


def test_launch_is_short_for_engine_launch() -> None:
    assert composed("launch=attach").engine.launch == "attach"
    assert composed().engine.launch == "process"


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("engine=fake engine.options.decode_ms=5", None),
        ("engine=fake +engine.options.delay=5", "engine.options.delay: nothing of engine fake uses it"),
        ("engine=fake '+engine.options.delay=5' 'engine.command=[x,\"{delay:words}\"]'", None),
    ],
)
def test_an_option_that_was_typed_and_that_nothing_uses_is_named(words: str, wrong: str | None) -> None:
    typed = shlex.split(words)
    found = unused_option(typed, composed(*typed).engine)
    assert (found is None) if wrong is None else (found or "").startswith(wrong)


def test_an_option_typed_for_a_sweep_may_be_for_one_of_its_engines() -> None:
    engines = [composed(f"engine={name}").engine for name in ("fake", "llama_server")]
    assert unused_option(["engine.options.decode_ms=5", "engine.options.flags=-v"], *engines) is None
    found = unused_option(["+engine.options.delay=5"], *engines) or ""
    assert found.startswith("engine.options.delay: nothing of engine fake, llama_server uses it; its options are ")
    assert found.endswith(", ".join(sorted({*engines[0].options, "flags"})))


def test_a_model_of_ones_own_needs_no_synthetic_one() -> None:
    assert composed("model.synthetic=null", "model.path=/models/x").model.synthetic is None


@pytest.mark.parametrize(
    ("varying", "folder"),
    [
        ("", "fake"),
        ("engine=fake", "fake"),
        ("+engine=fake,repeat=1", "fake,repeat=1"),
        ("engine=fake,workload.path=../a b/c.json", "fake,workload.path=..-a-b-c.json"),
    ],
)
def test_a_run_folder_is_named_for_what_varies(varying: str, folder: str) -> None:
    assert row_folder("fake", varying) == folder
