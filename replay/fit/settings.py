"""What a search is told: ``fit.name=value`` on the command line, else the engine's own ``capacity``."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from engines.base import EngineError
from engines.placeholders import used_names
from engines.settings import EngineSettings
from replay.fit.search import Bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    option: str | None = None
    low: int = 0
    high: int = 0
    step: int = 1
    prefer: str = "largest"
    text: str = "{value}"
    margin_mib: int = 1024
    """What each GPU must keep free at its peak."""
    host_margin_mib: int = 1024
    """What the machine's memory must keep available at its peak."""
    rss_mib: int | None = None
    """The most memory that the engine's own processes may hold; None sets no limit of its own."""
    out: Path | None = None
    """Where the found setting is written; None takes ``fit/<engine>.yaml``."""

    @property
    def bounds(self) -> Bounds:
        return Bounds(low=self.low, high=self.high, step=self.step, prefer=self.prefer)

    def value_text(self, value: int) -> str:
        return self.text.replace("{value}", str(value))


def fit_settings(engine: EngineSettings, words: Sequence[str]) -> FitSettings:
    """Merge ``fit.…`` words over what the engine's file says.

    Raises:
        EngineError: an unknown name, a number that is none, an option that the engine has not.
    """
    own = engine.capacity
    found = FitSettings(
        option=own.option, low=own.low, high=own.high, step=own.step, prefer=own.prefer, text=own.text
    )
    types = get_type_hints(FitSettings)
    for word in words:
        name, _, text = word.removeprefix("fit.").partition("=")
        if name not in {field.name for field in fields(FitSettings)}:
            known = ", ".join(field.name for field in fields(FitSettings))
            raise EngineError(f"{word}: there is no fit.{name}; known are {known}")
        found = replace(found, **{name: _parsed(word, text, types[name])})
    usable = sorted(used_names(engine) & set(engine.options))
    if found.option is None:
        raise EngineError(
            f"engine {engine.name} names nothing to size; set fit.option to one of {', '.join(usable) or 'none'}, "
            "fit.low and fit.high"
        )
    if found.option not in usable:
        raise EngineError(
            f"fit.option={found.option}: engine {engine.name} uses no such option; it has "
            f"{', '.join(usable) or 'none'}"
        )
    if "{value}" not in found.text:
        raise EngineError(f"fit.text={found.text!r} holds no {{value}}; write where the number goes")
    _ = found.bounds
    return found


def _parsed(word: str, text: str, wanted: Any) -> Any:
    if wanted in (int, int | None):
        try:
            return int(text)
        except ValueError:
            raise EngineError(f"{word}: give a whole number") from None
    return Path(text) if wanted == Path | None else text
