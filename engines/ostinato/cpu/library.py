"""Experts computed on the CPU: what the engine asks for, and the choice between the two that offer it."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from engines.ostinato.cpu.build import BuildError
from engines.ostinato.expert_layout import ExpertLayout

# Shapes: T = tokens, D = model width, L = layers, E = experts.

MOST_ROUTES = 16
MAILBOX_HEADER = 256
"""Bytes before x in a request and before y in an answer."""


@dataclass(frozen=True, slots=True)
class Mailbox:
    """Host memory in which a GPU asks for experts of one token and finds the answer; little-endian, offsets in bytes.

    Request: 0 uint32 sequence, written last · 4 int32 layer · 8 int32 count, 1 … 16 · 16 int32 expert[16] ·
    80 float32 weight[16] · 256 x, D values in the activations' dtype.
    Answer: 0 uint32 sequence of the request, written last · 4 int32 status, 0 or, where the layer or an expert is not
    here, 1 · 256 y, D float32.
    """

    request_address: int
    response_address: int


@dataclass(frozen=True, slots=True)
class ServiceStats:
    """Of a service since it began."""

    jobs: int
    experts: int
    """Computed, over all jobs."""
    busy_ns: int
    longest_job_ns: int


class Service(Protocol):
    """Answers mailboxes between :meth:`start` and :meth:`park`.

    A request is a sequence that differs from the last one answered; :meth:`start` takes the answer's for that.
    """

    def start(self) -> None:
        """The threads wake and watch the mailboxes, busily, until :meth:`park`."""

    def park(self) -> None:
        """The threads sleep. What was begun is answered before this returns; mailboxes may be written then."""

    def counts(self, out: NDArray[np.int64]) -> None:
        """``[L, E]`` how often each expert was computed since the last call."""

    def stats(self) -> ServiceStats:
        """What was done so far."""

    def stall(self, on: bool) -> None:
        """While on, requests are not seen: a test's way to a processor that does not answer."""

    def stop(self) -> None:
        """Ends it. Call before the mailboxes' memory or the experts go."""


class CpuExperts(Protocol):
    """Threads that stay and compute experts where they lie in host memory."""

    layout: ExpertLayout
    threads: int
    isa: str
    """Instruction set in use, or ``torch``."""

    def compute(
        self,
        experts: NDArray[np.int64],
        starts: NDArray[np.int32],
        tokens: NDArray[np.int32],
        weights: NDArray[np.float32],
        x_TD: torch.Tensor,
        out_TD: torch.Tensor,
    ) -> None:
        """``out[t] = Σ weight · expert(x[t])`` over the routes given here, added in the order of ``experts``; 0 for a
        token without one. The kernels give the same bits for any number of threads.

        Args:
            experts: ``[n]`` addresses of the blocks, one a distinct expert.
            starts: ``[n + 1]``; the routes of expert i are ``starts[i]:starts[i + 1]``.
            tokens: ``[R]`` row of x and out of each route.
            weights: ``[R]``.
            x_TD: on the CPU, contiguous; bfloat16 for bfloat16 and mxfp4 experts, else the experts' dtype.
            out_TD: on the CPU, contiguous, float32; overwritten.
        """

    def service(self, tables: NDArray[np.int64], mailboxes: Sequence[Mailbox]) -> Service:
        """Answers requests of decode steps, parked at first.

        Args:
            tables: ``[L, E]`` address of every expert's block, 0 where it is not on the host; copied.
            mailboxes: one a GPU, looked at in turn.
        """

    def close(self) -> None:
        """Ends the threads. Stop services first."""


def open_cpu_experts(layout: ExpertLayout, threads: int, cores: Sequence[int] | None = None) -> CpuExperts:
    """The compiled kernels or, with a warning where they can't be had, PyTorch's."""
    from engines.ostinato.cpu.native import NativeCpuExperts

    try:
        return NativeCpuExperts(layout, threads=threads, cores=cores)
    except BuildError as error:
        from engines.ostinato.cpu.torch_path import TorchCpuExperts

        warnings.warn(
            f"experts on the CPU run through PyTorch: {error}. An expert takes about four times as long, and the "
            "hand-over in a decode step far longer",
            RuntimeWarning,
            stacklevel=2,
        )
        return TorchCpuExperts(layout, threads=threads, cores=cores)
