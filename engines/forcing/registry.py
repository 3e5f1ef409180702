"""Ways of forcing by name."""

from collections.abc import Callable
from pathlib import Path

from engines.base import EngineError, Forcing
from engines.forcing import one_token
from engines.forcing.field import FieldForcing
from engines.forcing.hook import HookForcing
from engines.forcing.none import NoForcing
from engines.forcing.one_token import OneToken
from engines.forcing.shim import ShimForcing
from engines.forcing.trace_replay import TraceReplay
from engines.settings import EngineSettings

_WAYS: dict[str, Callable[[EngineSettings, Path], Forcing]] = {
    "field": lambda *_: FieldForcing(),
    "hook": HookForcing,
    "none": lambda *_: NoForcing(),
    "one_token": lambda *_: OneToken(),
    "shim": ShimForcing,
    "trace_replay": lambda *_: TraceReplay(),
}


def forcing(settings: EngineSettings, folder: Path) -> Forcing:
    """Get ready to force an engine; the caller closes it.

    Args:
        folder: the run's folder, where files may go that no memory takes.

    Raises:
        EngineError: an unknown name, or a server that can't be forced this way.
    """
    if settings.forcing not in _WAYS:
        raise EngineError(f"engine.forcing: there is no {settings.forcing!r}; choose one of {', '.join(_WAYS)}")
    return _WAYS[settings.forcing](settings, folder)


def note(settings: EngineSettings) -> str:
    """The engine's note, with what its way of forcing means for its numbers."""
    added = one_token.NOTE if settings.forcing == "one_token" else ""
    return " ".join(part for part in (settings.note, added) if part)
