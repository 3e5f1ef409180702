"""Ways of forcing by name."""

from pathlib import Path

from engines.base import EngineError, Forcing
from engines.forcing.field import FieldForcing
from engines.forcing.none import NoForcing
from engines.forcing.shim import ShimForcing
from engines.settings import EngineSettings


def forcing(settings: EngineSettings, folder: Path) -> Forcing:
    """Get ready to force an engine; the caller closes it.

    Args:
        folder: the run's folder, where files may go that no memory takes.

    Raises:
        EngineError: an unknown name, or a server that can't be forced this way.
    """
    if settings.forcing == "field":
        return FieldForcing()
    if settings.forcing == "none":
        return NoForcing()
    if settings.forcing == "shim":
        return ShimForcing(settings, folder)
    raise EngineError(f"engine.forcing: there is no {settings.forcing!r}; choose one of field, shim, none")
