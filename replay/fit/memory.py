"""How much memory was left at the worst moment of a try."""

import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import psutil

from replay.commands import output

_EVERY_S = 0.2
_FREE = ("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """At the peak; MiB."""

    gpu_free_mib: tuple[int, ...] = ()
    """Of each GPU; empty where there is none."""
    host_free_mib: int | None = None
    rss_mib: int | None = None
    """The most that the engine's processes held; None for one that is not a process of this machine."""

    def shown(self) -> str:
        said = [f"GPU {i}: {free:,} MiB free" for i, free in enumerate(self.gpu_free_mib)]
        if self.host_free_mib is not None:
            said.append(f"host: {self.host_free_mib:,} MiB available")
        if self.rss_mib is not None:
            said.append(f"engine: {self.rss_mib:,} MiB")
        return ", ".join(said)


class MemoryWatch:
    """Samples in a thread while it is entered; ``follow`` names the engine's process once it is known."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)
        self._pid: int | None = None
        self._left = Left()
        self._has_gpus = output(_FREE) is not None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def follow(self, pid: int | None) -> None:
        self._pid = pid

    @property
    def left(self) -> Left:
        return self._left

    def sample(self) -> None:
        """Take one now: the moment after a request, which no clock would hit."""
        now = Left(
            gpu_free_mib=self._gpus_free(),
            host_free_mib=psutil.virtual_memory().available // 2**20,
            rss_mib=_rss_mib(self._pid) if self._pid is not None else None,
        )
        self._left = _worse(self._left, now)

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self.sample()

    def _gpus_free(self) -> tuple[int, ...]:
        lines = (output(_FREE) or "").splitlines() if self._has_gpus else ()
        return tuple(int(line) for line in lines if line.strip().isdigit())


def _worse(one: Left, other: Left) -> Left:
    gpus = (one.gpu_free_mib, other.gpu_free_mib)
    return Left(
        gpu_free_mib=tuple(map(min, *gpus)) if all(gpus) else gpus[0] or gpus[1],
        host_free_mib=min((n for n in (one.host_free_mib, other.host_free_mib) if n is not None), default=None),
        rss_mib=max((n for n in (one.rss_mib, other.rss_mib) if n is not None), default=None),
    )


def _rss_mib(pid: int) -> int | None:
    """Of the process and all it started; shared pages count once a process, so it is an upper bound."""
    try:
        process = psutil.Process(pid)
        return sum(one.memory_info().rss for one in (process, *process.children(recursive=True))) // 2**20
    except psutil.Error:
        return None
