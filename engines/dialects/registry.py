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
    known = sorted({module.name for module in pkgutil.iter_modules(dialects.__path__)} - {"registry"})
    if name not in known:
        raise EngineError(f"engine.dialect: there is no dialect {name!r}; choose one of {', '.join(known)}")
    found: Dialect = importlib.import_module(f"{dialects.__name__}.{name}").DIALECT
    return found
