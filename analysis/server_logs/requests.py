"""What a log tells of its requests; NaN in a column where it does not tell."""

from array import array
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """Counts and times as the server logged them; None: not told."""

    new_tokens: int | None
    """Tokens that were prefilled: those of the prompt that no cache held."""
    prefill_s: float | None
    generated: int | None
    decode_s: float | None
    """From the first generated token to the last."""
    steps: int | None
    """Decode steps within ``decode_s``: tokens after the first."""


@dataclass(frozen=True, slots=True)
class Window:
    """One of a server's own averages over some seconds or steps, all its requests together."""

    running: int
    generated_per_s: float


def _column() -> "array[Any]":
    return array("d")


@dataclass(slots=True)
class Log:
    """One log, read. Columns rather than requests: a log of some gigabytes holds millions of them."""

    path: Path
    server: str
    """``llama.cpp``, ``SGLang`` or ``vLLM``."""
    lacks: tuple[str, ...] = ()
    """What this kind of log does not carry, in words."""
    columns: "dict[str, array[Any]]" = field(
        default_factory=lambda: {name: _column() for name in LoggedRequest.__dataclass_fields__}
    )
    running: "array[Any]" = field(default_factory=_column)
    """Of each window, the requests that ran."""
    generated_per_s: "array[Any]" = field(default_factory=_column)
    """Of each window."""

    def add(self, found: LoggedRequest | Window) -> None:
        if isinstance(found, Window):
            self.running.append(found.running)
            self.generated_per_s.append(found.generated_per_s)
            return
        for name, column in self.columns.items():
            value = getattr(found, name)
            column.append(nan if value is None else value)

    @property
    def requests(self) -> int:
        return len(self.columns["new_tokens"])

    @property
    def windows(self) -> int:
        return len(self.running)

    def column(self, name: str) -> Floats:
        return np.asarray(self.columns[name], np.float64)
