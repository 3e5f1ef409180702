"""Each placement in ``conf/`` reaches the engine's command line as a policy that exists."""

from pathlib import Path

import pytest
from hydra import compose

from engines.ostinato.placement.registry import policy
from engines.settings import EngineSettings
from replay.config import CONF, checked

pytestmark = pytest.mark.usefixtures("hydra")


def engine(*overrides: str) -> EngineSettings:
    return checked(compose("config", list(overrides))).engine


@pytest.mark.parametrize("path", sorted((CONF / "placement").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_placement_is_a_policy_with_its_settings(path: Path) -> None:
    spec = engine("engine=ostinato", f"placement={path.stem}").options["placement"]
    assert path.stem.startswith(policy(spec).name)


def test_a_setting_of_a_placement_has_a_name_of_its_own() -> None:
    found = policy(engine("placement=lru_cache", "engine.options.largest_pass=8").options["placement"])
    assert found.largest_pass == 8  # type: ignore[attr-defined]


def test_without_a_placement_every_option_of_the_command_has_a_value() -> None:
    settings = engine()
    assert settings.options["placement"] == "ostinato"
    given = {"python": "p", "model": "m", "port": 1, "context": 2, "threads": 3}
    words = [word.format_map({**given, **settings.options}) for word in settings.command]
    options = dict(zip(words[4::2], words[5::2], strict=True))
    assert options["--residency"] == options["--vram-budget"] == ""
    assert options["--prefill-path"] == "auto"


def test_another_engine_takes_no_notice_of_a_placement() -> None:
    assert engine("engine=fake", "placement=layers").command == engine("engine=fake").command
