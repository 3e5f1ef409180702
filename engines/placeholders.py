"""Fills ``{model}``, ``{port}`` and their like in an engine's command and environment."""

import re
import shlex
from collections.abc import Mapping, Sequence

from engines.base import EngineError
from engines.settings import EngineSettings


def placeholders(
    settings: EngineSettings, *, python: str, model: str | None, host: str, port: int, state: str | None
) -> dict[str, object]:
    """Name → what fills it, for a command that runs where these paths and this address hold."""
    values: dict[str, object] = {
        "python": python,
        "host": host,
        "port": port,
        "context": settings.context,
        "threads": settings.threads,
        **settings.options,
    }
    given = {"model": model, "binary": settings.binary, "state": state}
    return values | {name: value for name, value in given.items() if value is not None}


def filled(text: str, setting: str, values: Mapping[str, object]) -> str:
    """``text`` with its placeholders filled.

    Raises:
        EngineError: nothing fills one of them, or the braces are no placeholders; names ``setting``.
    """
    try:
        return text.format_map(values)
    except KeyError as error:
        name = error.args[0]
        advice = {
            "model": "set engine.model_format to what it loads",
            "binary": "set engine.binary to the server's executable",
        }.get(name, f"choose one of {', '.join(sorted(values))}, or add engine.options.{name}")
        raise EngineError(f"{setting}: nothing fills {{{name}}} in {text!r}; {advice}") from error
    except (ValueError, IndexError, AttributeError) as error:
        raise EngineError(f"{setting}: {text!r}: {error}; write {{{{ and }}}} for plain braces") from error


_WORDS = re.compile(r"\{(\w+):words\}")


def filled_command(command: Sequence[str], setting: str, values: Mapping[str, object]) -> list[str]:
    """A command with its placeholders filled; ``{name:words}``, alone in its place, becomes as many words as a shell
    would make of it.

    Raises:
        EngineError: as ``filled``, or a quotation mark that is never closed.
    """
    words: list[str] = []
    for part in command:
        if several := _WORDS.fullmatch(part):
            text = filled(f"{{{several[1]}}}", setting, values)
            try:
                words += shlex.split(text)
            except ValueError as error:
                raise EngineError(
                    f"engine.options.{several[1]}: {text!r}: {error}; close it, or escape it"
                ) from error
        else:
            words.append(filled(part, setting, values))
    return words


def used_names(settings: EngineSettings) -> set[str]:
    """Placeholders that the command, the container's own command and entry point, or the environment asks for."""
    inside = settings.container
    texts = (*settings.command, *inside.command, *(inside.entrypoint or ()), *settings.env.values())
    return {name for text in texts for name in re.findall(r"\{(\w+)[:}]", text)}


def names_state(command: Sequence[str], settings: EngineSettings) -> bool:
    """Whether the command or the environment asks for a state folder."""
    return any("{state}" in text for text in (*command, *settings.env.values()))
