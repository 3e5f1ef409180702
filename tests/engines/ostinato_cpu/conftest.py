"""Experts with random weights in memory, and what they compute, in float64."""

import ctypes
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from engines.ostinato.cpu.build import build
from engines.ostinato.cpu.native import X_DTYPES, NativeCpuExperts, offered
from engines.ostinato.cpu.torch_path import activate, dequantised
from engines.ostinato.expert_layout import ExpertLayout

# Shapes: T = tokens, D = model width, E = experts, R = routes.


@dataclass(frozen=True)
class Routes:
    """What a call of ``compute`` is told beside x."""

    experts: NDArray[np.int64]
    starts: NDArray[np.int32]
    tokens: NDArray[np.int32]
    weights: NDArray[np.float32]


class Bank:
    """``count`` experts one after the other, and their weights as float64."""

    def __init__(self, layout: ExpertLayout, count: int, seed: int = 0):
        self.layout, self.dtype = layout, X_DTYPES[layout.dtype]
        self.random = torch.Generator().manual_seed(seed)
        self._held = torch.zeros(count * layout.nbytes + 64, dtype=torch.uint8)
        self.address = -(-self._held.data_ptr() // 64) * 64
        first = self.address - self._held.data_ptr()
        self.addresses = self.address + layout.nbytes * np.arange(count, dtype=np.int64)
        self.weights = [self._fill(first + expert * layout.nbytes) for expert in range(count)]

    def _fill(self, start: int) -> dict[str, Tensor]:
        layout, weights = self.layout, {}
        for name, rows, columns in (
            ("gate", layout.width, layout.hidden),
            ("up", layout.width, layout.hidden),
            ("down", layout.hidden, layout.width),
        ):
            if layout.dtype == "mxfp4":
                packed = torch.randint(0, 256, (rows, columns // 2), generator=self.random, dtype=torch.uint8)
                scales = torch.randint(118, 127, (rows, columns // 32), generator=self.random, dtype=torch.uint8)
                self._put(start, name, packed)
                self._put(start, f"{name}_scales", scales)
                weights[name] = dequantised(packed, scales).double()
            else:
                values = (2 * torch.randn(rows, columns, generator=self.random) * columns**-0.5).to(self.dtype)
                self._put(start, name, values)
                weights[name] = values.double()
            if layout.bias:
                bias = torch.randn(rows, generator=self.random)
                self._put(start, f"{name}_bias", bias)
                weights[f"{name}_bias"] = bias.double()
        return weights

    def _put(self, start: int, name: str, values: Tensor) -> None:
        offset, nbytes = self.layout.parts[name]
        self._held[start + offset :][:nbytes] = values.contiguous().view(torch.uint8).reshape(-1)

    def x(self, tokens: int) -> Tensor:
        return torch.randn(tokens, self.layout.hidden, generator=self.random).to(self.dtype)

    def routes(self, tokens: int, share: float = 0.7) -> Routes:
        """Each expert takes a share of the tokens, in a random order of experts; the last token has no route."""
        chosen = torch.rand(len(self.weights), tokens, generator=self.random) < share
        chosen[:, -1] &= tokens == 1
        order = torch.randperm(len(self.weights), generator=self.random).numpy()
        rows = [np.flatnonzero(chosen[expert].numpy()) for expert in order]
        starts = np.cumsum([0, *map(len, rows)]).astype(np.int32)
        weights = torch.rand(int(starts[-1]), generator=self.random).numpy()
        return Routes(self.addresses[order], starts, np.concatenate(rows).astype(np.int32), weights)

    def expected(self, x_TD: Tensor, routes: Routes) -> Tensor:
        """float64; the inner activations rounded as the layout's dtype asks."""
        out_TD = torch.zeros(x_TD.shape, dtype=torch.float64)
        for i, address in enumerate(routes.experts):
            weights = self.weights[int(address - self.address) // self.layout.nbytes]
            chosen = slice(int(routes.starts[i]), int(routes.starts[i + 1]))
            tokens = torch.from_numpy(routes.tokens[chosen]).long()
            x = x_TD[tokens].double()
            h = activate(self.layout.activation, _product(weights, "gate", x), _product(weights, "up", x))
            if self.layout.dtype in {"bfloat16", "mxfp4"}:
                h = h.to(torch.bfloat16).double()
            scaled = torch.from_numpy(routes.weights[chosen]).double()[:, None] * _product(weights, "down", h)
            out_TD.index_add_(0, tokens, scaled)
        return out_TD


def _product(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ weights[name].T + weights.get(f"{name}_bias", 0)


class Gpu:
    """Plays the GPU of one mailbox."""

    def __init__(self, bank: Bank):
        self._bank, hidden = bank, bank.layout.hidden
        self._request = np.zeros(256 + 4 * hidden + 64, np.uint8)
        self._answer = np.zeros(256 + 4 * hidden + 64, np.uint8)
        self.request_address = -(-self._request.ctypes.data // 64) * 64
        self.response_address = -(-self._answer.ctypes.data // 64) * 64
        self._words = (ctypes.c_uint32 * 64).from_address(self.request_address)
        self._floats = (ctypes.c_float * 64).from_address(self.request_address)
        self._answered = (ctypes.c_uint32 * 64).from_address(self.response_address)
        self._y = (ctypes.c_float * hidden).from_address(self.response_address + 256)

    def ask(self, sequence: int, layer: int, experts: list[int], weights: NDArray[np.float32], x_1D: Tensor) -> None:
        self._words[1], self._words[2] = layer & 0xFFFFFFFF, len(experts)
        for i, (expert, weight) in enumerate(zip(experts, weights, strict=True)):
            self._words[4 + i], self._floats[20 + i] = expert & 0xFFFFFFFF, float(weight)
        ctypes.memmove(self.request_address + 256, x_1D.data_ptr(), x_1D.nbytes)
        self._words[0] = sequence

    @property
    def sequence(self) -> int:
        return self._answered[0]

    @property
    def status(self) -> int:
        return self._answered[1]

    @property
    def y(self) -> Tensor:
        return torch.tensor(list(self._y))[None]


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    """PyTorch's threads spin, and the pool's are beside them here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def library() -> Path:
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        pytest.skip("no C++ compiler here, and the kernels are compiled")
    return build()


@pytest.fixture
def isas(library: Path) -> Callable[[str], list[str]]:
    return lambda dtype: offered(dtype, library)


@pytest.fixture
def opened(library: Path) -> Callable[..., object]:
    @contextmanager
    def opened(layout: ExpertLayout, threads: int = 2, **more: object) -> Iterator[NativeCpuExperts]:
        experts = NativeCpuExperts(layout, threads=threads, library=library, **more)  # type: ignore[arg-type]
        try:
            yield experts
        finally:
            experts.close()

    return opened


@pytest.fixture
def bank() -> type[Bank]:
    return Bank


@pytest.fixture
def gpu() -> type[Gpu]:
    return Gpu
