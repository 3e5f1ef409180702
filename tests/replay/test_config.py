"""Every file in ``conf/`` fits the schema, and nothing else does."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException, MissingConfigException
from omegaconf.errors import ConfigKeyError, ValidationError

from engines.settings import EngineSettings
from replay.config import CONF, Config, checked, register, row_folder
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
}
FILES = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]


@pytest.fixture(scope="module", autouse=True)
def hydra() -> Iterator[None]:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def composed(*overrides: str) -> Config:
    return checked(compose("config", list(overrides)))


@pytest.mark.parametrize(("group", "name"), FILES)
def test_the_file_fits_the_schema_lists_every_field_and_says_its_name(group: str, name: str) -> None:
    settings = getattr(composed(f"{group}={name}"), group)
    assert isinstance(settings, GROUPS[group])
    assert settings.name == name
    written = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
    assert sorted(written) == sorted(asdict(settings))


def test_the_engines_workloads_and_models_that_the_readme_names_are_there() -> None:
    assert {("engine", name) for name in ("ostinato", "llamacpp", "ik_llamacpp", "llama_server", "fake")} <= set(
        FILES
    )
    assert {("workload", name) for name in ("sample", "sessions", "synthetic", "tau2", "openhands")} <= set(FILES)
    assert ("model", "tiny") in FILES


@pytest.mark.parametrize("path", sorted((CONF / "experiment").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_experiment_composes_with_each_of_its_engines(path: Path) -> None:
    experiment = yaml.safe_load(path.read_text())
    for engine in experiment["hydra"]["sweeper"]["params"]["engine"].split(","):
        config = composed(f"+experiment={path.stem}", f"engine={engine}")
        assert config.name == experiment["name"]
        assert config.engine.name == engine


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
