"""The compiled library, and its pool of threads with the layouts that it computes."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

from engines.ostinato.expert_layout import ExpertLayout

DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2, "mxfp4": 3}
_KINDS = {"silu": 0, "gelu_tanh": 1, "silu_clamp": 2, "swiglu_oai": 3}
_PARTS = ("gate", "up", "down", "gate_scales", "up_scales", "down_scales", "gate_bias", "up_bias", "down_bias")


class _Shape(ctypes.Structure):
    """``Shape`` of native/job.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("hidden", "width")),
        *((name, ctypes.c_int32) for name in ("dtype", "bias", "kind", "reserved")),
        *((name, ctypes.c_float) for name in ("alpha", "limit")),
        *((name, ctypes.c_int64) for name in _PARTS),
    )


class ThreadPool:
    """The threads, and the layouts that they compute so far."""

    def __init__(self, library: ctypes.CDLL, cores: Any, threads: int, spins: int) -> None:
        self._library = library
        self._handle = library.ostinato_open(threads, cores, spins)
        if not self._handle:
            raise ValueError(f"{threads} threads can't be had")
        self._forms: dict[ExpertLayout, int] = {}

    @property
    def handle(self) -> int:
        assert self._handle, "closed"
        return int(self._handle)

    def form(self, layout: ExpertLayout, isa: str | None = None) -> int:
        """The pool's number for a layout."""
        if layout not in self._forms:
            number = self._library.ostinato_add(
                self.handle, ctypes.byref(_shape(layout)), isa.encode() if isa else None
            )
            if number < 0:
                self.close()
                raise ValueError(f"this processor, or the library built for it, has no {isa or 'kernels'}")
            self._forms[layout] = number
        return self._forms[layout]

    def close(self) -> None:
        if self._handle:
            self._library.ostinato_close(self._handle)
            self._handle = None


def _shape(layout: ExpertLayout) -> _Shape:
    activation = layout.activation
    shape = _Shape(
        hidden=layout.hidden,
        width=layout.width,
        dtype=DTYPES[layout.dtype],
        bias=layout.bias,
        kind=_KINDS[activation.kind],
        alpha=activation.alpha,
        limit=activation.limit,
    )
    for name, (offset, _) in layout.parts.items():
        setattr(shape, name, offset)
    return shape


@cache
def load(path: Path) -> ctypes.CDLL:
    """The library with its functions' types."""
    library = ctypes.CDLL(str(path))
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    for name, result, arguments in (
        ("open", pointer, (integer, pointer, integer)),
        ("add", integer, (pointer, pointer, ctypes.c_char_p)),
        ("offers", integer, (ctypes.c_char_p, integer)),
        ("isa", ctypes.c_char_p, (pointer, integer)),
        ("close", None, (pointer,)),
        ("compute", integer, (pointer, integer, integer, *(pointer,) * 5, ctypes.c_int64, pointer)),
        ("service", pointer, (pointer, pointer, pointer, integer, integer, pointer, integer)),
        ("start", None, (pointer,)),
        ("park", None, (pointer,)),
        ("stall", None, (pointer, integer)),
        ("counts", None, (pointer, pointer)),
        ("stats", None, (pointer, pointer)),
        ("stop", None, (pointer,)),
    ):
        function = getattr(library, f"ostinato_{name}")
        function.restype, function.argtypes = result, arguments
    return library
