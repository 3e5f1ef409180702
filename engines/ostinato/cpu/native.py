"""The compiled kernels through ctypes."""

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from engines.ostinato.cpu.build import build
from engines.ostinato.cpu.cores import choose_cores
from engines.ostinato.cpu.library import Mailbox, ServiceStats
from engines.ostinato.expert_layout import ExpertLayout

# Shapes: T = tokens, D = model width, L = layers, E = experts.

_DTYPES = {"float32": 0, "bfloat16": 1, "float16": 2, "mxfp4": 3}
_KINDS = {"silu": 0, "gelu_tanh": 1, "silu_clamp": 2, "swiglu_oai": 3}
X_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "mxfp4": torch.bfloat16,
}
"""Of x, by the layout's dtype."""
_OWN_CORE_SPINS = 20_000
_SHARED_CORE_SPINS = 50
"""Looks before a waiting thread lets others run: about 1 ms where it has its core to itself."""
ISAS = ("amx", "avx512bf16", "avx512", "avx2", "plain")
_PARTS = ("gate", "up", "down", "gate_scales", "up_scales", "down_scales", "gate_bias", "up_bias", "down_bias")


class _Shape(ctypes.Structure):
    """``Shape`` of native/job.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("hidden", "width")),
        *((name, ctypes.c_int32) for name in ("dtype", "bias", "kind", "reserved")),
        *((name, ctypes.c_float) for name in ("alpha", "limit")),
        *((name, ctypes.c_int64) for name in _PARTS),
    )


class NativeCpuExperts:
    """:class:`~engines.ostinato.cpu.library.CpuExperts` in C++."""

    def __init__(
        self,
        layout: ExpertLayout,
        *,
        threads: int,
        cores: Sequence[int] | None = None,
        isa: str | None = None,
        spins: int | None = None,
        library: Path | None = None,
    ):
        """Compiles the kernels at their first use.

        Args:
            cores: one a thread; None: chosen from those this process may use, over the NUMA nodes in turn.
            isa: one of :data:`ISAS`; None: the best of this processor.
            spins: looks before a waiting thread lets others run.
            library: built otherwise.

        Raises:
            BuildError: no compiler, or it failed.
            ValueError: the processor lacks ``isa``, or threads and cores don't fit.
        """
        if threads < 1 or (cores is not None and len(cores) < threads):
            raise ValueError(f"{threads} threads need at least one core each, {cores} were given")
        chosen = list(choose_cores(threads) if cores is None else cores)[:threads]
        if spins is None:
            spins = _OWN_CORE_SPINS if len(set(chosen)) == threads else _SHARED_CORE_SPINS
        self.layout, self.threads, self.cores = layout, threads, tuple(chosen)
        self._library = load(library or build())
        self._shape = _shape(layout)
        wanted, pinned = isa.encode() if isa else None, (ctypes.c_int * threads)(*chosen)
        self._pool = self._library.ostinato_open(ctypes.byref(self._shape), wanted, threads, pinned, spins)
        if not self._pool:
            raise ValueError(f"this processor, or the library built for it, has no {isa or 'kernels'}")
        self.isa: str = self._library.ostinato_isa(self._pool).decode()

    def compute(
        self,
        experts: NDArray[np.int64],
        starts: NDArray[np.int32],
        tokens: NDArray[np.int32],
        weights: NDArray[np.float32],
        x_TD: torch.Tensor,
        out_TD: torch.Tensor,
    ) -> None:
        """See :meth:`engines.ostinato.cpu.library.CpuExperts.compute`."""
        assert self._pool, "closed"
        check(self.layout, experts, starts, tokens, weights, x_TD, out_TD)
        if len(tokens) == 0:
            out_TD.zero_()
            return
        failed = self._library.ostinato_compute(
            self._pool,
            len(experts),
            experts.ctypes.data,
            starts.ctypes.data,
            tokens.ctypes.data,
            weights.ctypes.data,
            x_TD.data_ptr(),
            len(x_TD),
            out_TD.data_ptr(),
        )
        if failed:
            raise MemoryError(f"no memory for the inner activations of {len(tokens)} routes")

    def service(self, tables: NDArray[np.int64], mailboxes: Sequence[Mailbox]) -> "NativeService":
        """See :meth:`engines.ostinato.cpu.library.CpuExperts.service`. One service a pool at a time."""
        assert self._pool, "closed"
        return NativeService(self._library, self._pool, tables, mailboxes)

    def close(self) -> None:
        """Ends the threads. Stop services first."""
        if self._pool:
            self._library.ostinato_close(self._pool)
            self._pool = None


class NativeService:
    """:class:`~engines.ostinato.cpu.library.Service` of the pool's first thread."""

    def __init__(self, library: ctypes.CDLL, pool: int, tables: NDArray[np.int64], mailboxes: Sequence[Mailbox]):
        assert tables.dtype == np.int64
        assert tables.ndim == 2
        assert mailboxes
        held = np.ascontiguousarray(tables)
        pairs = np.array([[box.request_address, box.response_address] for box in mailboxes], np.int64)
        self._library, self._shape = library, tables.shape
        self._service = library.ostinato_service(pool, held.ctypes.data, *held.shape, pairs.ctypes.data, len(pairs))

    def start(self) -> None:
        """See :class:`~engines.ostinato.cpu.library.Service`."""
        self._library.ostinato_start(self._running())

    def park(self) -> None:
        """See :class:`~engines.ostinato.cpu.library.Service`."""
        self._library.ostinato_park(self._running())

    def stall(self, on: bool) -> None:
        """See :class:`~engines.ostinato.cpu.library.Service`."""
        self._library.ostinato_stall(self._running(), int(on))

    def counts(self, out: NDArray[np.int64]) -> None:
        """See :class:`~engines.ostinato.cpu.library.Service`."""
        assert out.dtype == np.int64
        assert out.shape == self._shape
        assert out.flags.c_contiguous
        self._library.ostinato_counts(self._running(), out.ctypes.data)

    def stats(self) -> ServiceStats:
        """See :class:`~engines.ostinato.cpu.library.Service`."""
        values = (ctypes.c_int64 * 4)()
        self._library.ostinato_stats(self._running(), values)
        return ServiceStats(*values)

    def stop(self) -> None:
        """See :class:`~engines.ostinato.cpu.library.Service`."""
        if self._service:
            self._library.ostinato_stop(self._service)
            self._service = None

    def _running(self) -> int:
        assert self._service, "stopped"
        return int(self._service)


def check(
    layout: ExpertLayout,
    experts: NDArray[np.int64],
    starts: NDArray[np.int32],
    tokens: NDArray[np.int32],
    weights: NDArray[np.float32],
    x_TD: torch.Tensor,
    out_TD: torch.Tensor,
) -> None:
    """Asserts what the kernels would crash on; the engine's own code is all that calls them."""
    assert experts.dtype == np.int64
    assert starts.dtype == tokens.dtype == np.int32
    assert weights.dtype == np.float32
    assert all(array.flags.c_contiguous for array in (experts, starts, tokens, weights))
    assert len(starts) == len(experts) + 1
    assert starts[0] == 0
    assert starts[-1] == len(tokens) == len(weights)
    assert x_TD.shape == out_TD.shape == (len(x_TD), layout.hidden)
    assert x_TD.dtype == X_DTYPES[layout.dtype]
    assert out_TD.dtype == torch.float32
    assert x_TD.is_contiguous()
    assert out_TD.is_contiguous()
    assert x_TD.device.type == out_TD.device.type == "cpu"
    assert len(tokens) == 0 or 0 <= int(tokens.min()) <= int(tokens.max()) < len(x_TD)


def offered(dtype: str, library: Path | None = None) -> list[str]:
    """Those of :data:`ISAS` that have kernels for a layout's dtype on this processor."""
    compiled = load(library or build())
    return [isa for isa in ISAS if compiled.ostinato_offers(isa.encode(), _DTYPES[dtype])]


def _shape(layout: ExpertLayout) -> _Shape:
    activation = layout.activation
    shape = _Shape(
        hidden=layout.hidden,
        width=layout.width,
        dtype=_DTYPES[layout.dtype],
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
        ("open", pointer, (pointer, ctypes.c_char_p, integer, pointer, integer)),
        ("offers", integer, (ctypes.c_char_p, integer)),
        ("isa", ctypes.c_char_p, (pointer,)),
        ("close", None, (pointer,)),
        ("compute", integer, (pointer, integer, *(pointer,) * 5, ctypes.c_int64, pointer)),
        ("service", pointer, (pointer, pointer, integer, integer, pointer, integer)),
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
