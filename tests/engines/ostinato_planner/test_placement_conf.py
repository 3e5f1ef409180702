"""Every file in ``conf/placement`` names a policy that exists, with settings it has."""

from collections.abc import Iterator

import pytest
from hydra import compose, initialize_config_dir

from engines.ostinato.placement.registry import POLICIES, policy
from replay.config import CONF, checked, register

# Hydra wants a plus for a group that the defaults list does not name.
PLUS = "" if "placement:" in (CONF / "config.yaml").read_text(encoding="utf-8") else "+"
FILES = sorted(path.stem for path in (CONF / "placement").glob("*.yaml"))


@pytest.fixture(scope="module", autouse=True)
def hydra() -> Iterator[None]:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def options(name: str, *more: str) -> dict[str, str]:
    """The engine options that a choice sets."""
    return checked(compose("config", [f"{PLUS}placement={name}", *more])).engine.options


@pytest.mark.parametrize("name", FILES)
def test_a_choice_builds_its_policy(name: str) -> None:
    made = policy(options(name)["placement"])
    assert made.name == name or name.startswith(f"{made.name}_")


def test_every_policy_can_be_chosen() -> None:
    assert set(POLICIES) <= set(FILES)


def test_one_setting_of_a_choice_can_be_changed() -> None:
    made = policy(options("paging", "engine.options.kv_split=50_50", "engine.options.online=true")["placement"])
    assert (made.kv_split, made.online) == ("50_50", True)  # type: ignore[attr-defined]
