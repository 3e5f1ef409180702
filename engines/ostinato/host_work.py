"""The CPU's share of a pass beside the thread that gives the GPU its work.

The stream waits for the CPU by a kernel that looks at page-locked memory, so the thread can give the GPU the next
layer's dense operators while the CPU still computes this one's experts.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from engines.ostinato.backend import BackendError

_TIMEOUT_MS = 60_000


class HostWork:
    """One job at a time, in order with a CUDA stream."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "cpu-experts")
        self._flag = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._failure = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._ticket = 0
        self._job: Future[None] | None = None

    def begin(self, job: Callable[[], None]) -> None:
        """Run a job; what the current stream is given from now on waits for its end."""
        from engines.ostinato.handover import kernel

        self.finish()
        self._ticket += 1
        self._job = self._thread.submit(self._run, job, self._ticket)
        kernel("await_host")((1, 1, 1), (1, 1, 1), [self._flag, self._ticket, self._failure, _TIMEOUT_MS])

    def finish(self) -> None:
        """Wait for the job and raise what it raised.

        Raises:
            BackendError: it did not end in time.
        """
        job, self._job = self._job, None
        if job is not None:
            job.result()
        if self._failure[0] != 0:
            self._failure[0] = 0
            raise BackendError(f"the CPU pool did not finish a layer's experts within {_TIMEOUT_MS // 1000} s")

    def _run(self, job: Callable[[], None], ticket: int) -> None:
        try:
            job()
        finally:  # a GPU that waits for a failed job would wait in vain
            self._flag[0] = ticket
