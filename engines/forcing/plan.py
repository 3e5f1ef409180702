"""The file that the harness shares with the code that it loads into a server: what to force, and what it did."""

import contextlib
import fcntl
import mmap
import os
import shutil
import tempfile
import time
from array import array
from pathlib import Path

_MAGIC = 0x3143524F  # shim.c reads the same
_HEADER_BYTES = 64
_ARMED, _FIRST, _END, _PID, _BATCHES, _FETCHES, _FORCED, _TURN = range(2, 10)
"""The header's 32-bit fields behind magic and capacity, as shim.c and hooks/ostinato_forcing.py lay them out."""

_PREFIX = "ostinato-force-"
_MAKING_S = 60.0


class Plan:
    """One server's plan, in a folder of its own in memory; the folder goes with ``close``.

    Args:
        capacity: the longest sequence, in tokens.
        fallback: where the folder is made when there is no ``/dev/shm``.
    """

    def __init__(self, capacity: int, fallback: Path) -> None:
        self.capacity = capacity + capacity % 2  # keeps the 64-bit array aligned
        # On a disk, writing back a dirty page could hold up the server between two tokens.
        shm = Path("/dev/shm")  # noqa: S108 the folder made in it is private
        room = shm if os.access(shm, os.W_OK) else fallback
        _sweep(room)
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=room))
        self._lock = os.open(self.folder, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = self.folder / "plan"
        size = _HEADER_BYTES + 20 * self.capacity
        with self.path.open("w+b") as file:
            file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)
        self._view = memoryview(self._map)
        self._header = self._view[:_HEADER_BYTES].cast("I")
        self._want, self._fed, self._chosen = (self._view[start:end].cast("i") for start, end in self._columns())
        self._chosen_ns = self._view[_HEADER_BYTES + 12 * self.capacity :].cast("q")
        self._header[0], self._header[1] = _MAGIC, self.capacity

    def _columns(self) -> list[tuple[int, int]]:
        size = 4 * self.capacity
        return [(_HEADER_BYTES + k * size, _HEADER_BYTES + (k + 1) * size) for k in range(3)]

    def arm(self, first: int, output_ids: tuple[int, ...]) -> None:
        """Force ``output_ids`` at the positions from ``first`` on, and forget what was observed."""
        end = first + len(output_ids)
        assert end <= self.capacity
        self._header[_ARMED] = 0
        self._header[_FORCED] = 0
        self._want[first:end] = array("i", output_ids)
        unknown = array("i", [-1]) * end
        self._fed[:end] = unknown
        self._chosen[:end] = unknown
        self._chosen_ns[first:end] = array("q", bytes(8 * len(output_ids)))
        self._header[_FIRST], self._header[_END] = first, end
        self._header[_TURN] = (self._header[_TURN] + 1) % (1 << 32)
        # Published by this store; the request that follows goes through the kernel, which orders it for any CPU.
        self._header[_ARMED] = 1

    @property
    def pid(self) -> int | None:
        """The process that loaded the library or the hook; None while none has."""
        return self._header[_PID] or None

    @property
    def batches(self) -> int:
        """Batches seen, over the server's life."""
        return self._header[_BATCHES]

    @property
    def fetches(self) -> int:
        """Rows of logits fetched, over the server's life."""
        return self._header[_FETCHES]

    @property
    def forced(self) -> int:
        """Positions forced since ``arm``."""
        return self._header[_FORCED]

    def fed(self, start: int, end: int) -> list[int]:
        """The id decoded at each position since ``arm``; -1 where none was."""
        return self._fed[start:end].tolist()

    def chosen(self, start: int, end: int) -> list[int]:
        """The id the server's sampler chose for each position since ``arm``; -1 where it did not say."""
        return self._chosen[start:end].tolist()

    def chosen_ns(self, start: int, end: int) -> list[int]:
        """When the logits that decide each position were ready, on CLOCK_MONOTONIC; 0 where they never were."""
        return self._chosen_ns[start:end].tolist()

    def close(self) -> None:
        """Remove the file. A server that still runs keeps its memory, unforced."""
        if self._map.closed:
            return
        self._header[_ARMED] = 0
        for view in (self._header, self._want, self._fed, self._chosen, self._chosen_ns, self._view):
            view.release()
        self._map.close()
        os.close(self._lock)
        shutil.rmtree(self.folder, ignore_errors=True)


def _sweep(room: Path) -> None:
    """Remove the folders of runs that were killed: nobody holds their lock any more."""
    for folder in room.glob(f"{_PREFIX}*"):
        # Another user's folder, or one that its own run removes meanwhile, is none of ours.
        with contextlib.suppress(OSError):
            if folder.stat().st_mtime > time.time() - _MAKING_S:
                continue
            handle = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(handle)
