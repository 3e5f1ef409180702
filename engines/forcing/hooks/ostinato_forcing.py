"""Waits for the modules that sample, and reads what is to be forced.

The recorded token is looked up by its position in the sequence, never by counting calls: that holds under chunked
prefill, prompt-cache reuse, aborted requests and overlapped scheduling.
"""

import importlib
import importlib.abc
import importlib.machinery
import mmap
import os
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

_HOOKS = {
    "sglang.srt.model_executor.model_runner": ("ostinato_forcing_sglang", "force_samples"),
    "freetoken.engine.sample": ("ostinato_forcing_freetoken", "force_samples"),
    "freetoken.tokenizer.tokenize": ("ostinato_forcing_freetoken", "take_ids"),
    "freetoken.tokenizer.detokenize": ("ostinato_forcing_freetoken", "give_ids"),
    "freetoken.tokenizer.server": ("ostinato_forcing_freetoken", "give_prompt_counts"),
}
"""Module of a server → what of this folder changes it once it is loaded."""

_MAGIC = 0x3143524F  # plan.py writes the same
_HEADER = struct.Struct("=10I")
_PID_AT = 5 * 4
_IDS_AT = 64


@dataclass(frozen=True)
class Turn:
    """Positions ``first`` to ``end - 1`` are to be forced."""

    number: int
    first: int
    end: int


class Plan:
    """The harness's file, mapped into memory: reading it costs no system call and never asks the GPU."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:  # noqa: PTH123
            self._map = mmap.mmap(file.fileno(), 0)
        if _HEADER.unpack_from(self._map)[0] != _MAGIC:
            raise RuntimeError(f"{path} is no plan of this version of the forcing hook")

    def turn(self) -> Turn | None:
        """The turn that is replayed now; None between turns of the harness's own."""
        _, _, armed, first, end, _, _, _, _, number = _HEADER.unpack_from(self._map)
        return Turn(number, first, end) if armed else None

    def ids(self, turn: Turn) -> bytes:
        """Its recorded ids, 32-bit."""
        return self._map[_IDS_AT + 4 * turn.first : _IDS_AT + 4 * turn.end]

    def id_at(self, turn: Turn, position: int) -> int:
        """The recorded id at a position; -1 where none is."""
        if not turn.first <= position < turn.end:
            return -1
        (found,) = struct.unpack_from("=i", self._map, _IDS_AT + 4 * position)
        return int(found)

    def loaded(self) -> None:
        """Tell the harness that this process's sampler is wrapped."""
        struct.pack_into("=I", self._map, _PID_AT, os.getpid())


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _HOOKS:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            file, function = _HOOKS[name]
            try:
                getattr(importlib.import_module(file), function)(module, self._plan)
            except AttributeError as error:
                raise RuntimeError(f"forcing: this version of {name} is not known ({error})") from error

        spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Wait for the modules; without a plan, do nothing."""
    path = os.environ.get("OSTINATO_FORCE_PLAN")
    if path:
        sys.meta_path.insert(0, _Finder(Plan(path)))
