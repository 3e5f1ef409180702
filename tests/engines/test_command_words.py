"""Options that stand for several words of a command, or for none."""

import pytest

from engines.base import EngineError
from engines.placeholders import filled_command, used_names
from engines.settings import ContainerSettings, EngineSettings

VALUES = {"flags": "--swa-full --name 'two words'", "none": "", "port": 8080}


def test_an_option_for_words_is_split_as_a_shell_would() -> None:
    command = ["server", "--port", "{port}", "{flags:words}", "{none:words}"]
    assert filled_command(command, "engine.command", VALUES) == [
        "server", "--port", "8080", "--swa-full", "--name", "two words",
    ]  # fmt: skip


def test_without_words_an_option_stays_one_argument() -> None:
    assert filled_command(["{flags}"], "engine.command", VALUES) == ["--swa-full --name 'two words'"]


def test_words_beside_something_else_are_refused() -> None:
    with pytest.raises(EngineError, match=r"engine\.command: '--x=\{flags:words\}'"):
        filled_command(["--x={flags:words}"], "engine.command", VALUES)


def test_a_quotation_mark_that_is_never_closed_is_named() -> None:
    with pytest.raises(EngineError, match=r"engine\.options\.flags: .*No closing quotation"):
        filled_command(["{flags:words}"], "engine.command", {"flags": "--name 'two"})


def test_words_that_nothing_fills_are_named() -> None:
    with pytest.raises(EngineError, match=r"nothing fills \{flags\} in '\{flags\}'; choose one of port"):
        filled_command(["{flags:words}"], "engine.command", {"port": 1})


def test_names_are_found_in_commands_entry_point_and_environment() -> None:
    settings = EngineSettings(
        name="x", label="x", dialect="ostinato", forcing="field",
        command=["{python}", "--a={a}", "{b:words}"], env={"C": "{c}/d", "E": "{{no}}"},
        container=ContainerSettings(command=["{f}"], entrypoint=["{g}"]),
    )  # fmt: skip
    assert used_names(settings) >= {"python", "a", "b", "c", "f", "g"}
