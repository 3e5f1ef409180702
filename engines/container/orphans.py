"""Says by labels whose container one is, and removes those whose owner is gone."""

import os
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

RUN = "ostinato.run"
_HOST, _BOOT, _PID, _START = "ostinato.host", "ostinato.boot", "ostinato.pid", "ostinato.start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process, told apart from any other that had or will have its number."""

    host: str
    """The machine's name; of a harness in a container, the container's. Others may use the same daemon."""
    boot: str
    """Changes with each start of the machine."""
    pid: int
    start: int
    """In clock ticks since the boot."""

    @classmethod
    def this_process(cls) -> Self:
        pid = os.getpid()
        start = started(pid)
        assert start is not None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return cls(host=socket.gethostname(), boot=boot, pid=pid, start=start)

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> Self | None:
        """None when the labels are not all there."""
        try:
            return cls(host=labels[_HOST], boot=labels[_BOOT], pid=int(labels[_PID]), start=int(labels[_START]))
        except (KeyError, ValueError):
            return None

    def labels(self, run: Path) -> dict[str, str]:
        return {
            RUN: str(run),
            _HOST: self.host,
            _BOOT: self.boot,
            _PID: str(self.pid),
            _START: str(self.start),
        }


def started(pid: int) -> int | None:
    """When a process of this machine started, in clock ticks since the boot; None when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *rest = stat[stat.rindex(b")") + 2 :].split()
    return None if state in b"ZX" else int(rest[18])


def is_orphan(labels: Mapping[str, str], here: Owner) -> bool:
    """Whether nobody will ever stop the container: its owner ran on this machine and is gone."""
    owner = Owner.of(labels)
    if owner is None or owner.host != here.host:
        return False
    return owner.boot != here.boot or started(owner.pid) != owner.start


def sweep(containers: Iterable[Any], here: Owner) -> list[str]:
    """Remove the orphans among the SDK's containers; return their names."""
    from docker.errors import APIError

    removed = []
    for container in containers:
        if is_orphan(container.labels, here):
            with suppress(APIError):  # somebody else removes it right now
                container.remove(force=True, v=True)
                removed.append(container.name)
    return removed
