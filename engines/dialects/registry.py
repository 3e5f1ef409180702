"""Wire dialects by name: each is a module of this package and gives itself as ``DIALECT``."""

import importlib
import pkgutil

from engines import dialects
from engines.base import Dialect, EngineError


def dialect(name: str) -> Dialect:
    """The dialect of that name.

    Raises:
        EngineError: ``setting`` when there is none.
    """
    modules = {module.name for module in pkgutil.iter_modules(dialects.__path__)}
    if name in modules and (found := _of(name)):
        return found
    known = sorted(module for module in modules if _of(module))
    raise EngineError(f"engine.dialect: there is no dialect {name!r}; choose one of {', '.join(known)}")


def _of(module: str) -> Dialect | None:
    """None for a module that dialects share."""
    found: Dialect | None = getattr(importlib.import_module(f"{dialects.__name__}.{module}"), "DIALECT", None)
    return found
