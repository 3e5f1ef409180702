"""One benchmark a machine: a lock that every run on a host takes, whatever started it.

It is an ``flock`` on one file a host, which the kernel releases when its holder ends, by kill -9 too. The file's
content only says who holds it.
"""

import fcntl
import getpass
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

from engines.base import EngineError
from replay.redact import redact

WAIT, FAIL, OFF = "wait", "fail", "off"
VARIABLE = "OSTINATO_LOCK"
"""Names another file: for processes that share a machine but not its benchmarks, such as tests."""
NAME = "ostinato-replay.lock"
# Not TMPDIR, which differs from user to user.
PLACES = (Path("/run/lock"), Path("/tmp"))  # noqa: S108
POLL_S = 0.2


class HostBusyError(EngineError):
    """Another benchmark has this machine, and waiting was not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who has the machine."""

    pid: int
    user: str
    what: str
    """The run, as its user would know it."""
    since_s: float
    """Wall clock."""

    def __str__(self) -> str:
        minutes = max(0.0, time.time() - self.since_s) / 60
        return f"{self.what} (pid {self.pid} of {self.user}, for {minutes:.0f} min)"


def check(lock: str) -> None:
    """Raises EngineError when the setting is not known."""
    if lock not in (WAIT, FAIL, OFF):
        raise EngineError(f"lock={lock} is not known; set wait, fail or off")


def place() -> Path:
    """The file: the same for every user of a host, so it must lie where all may write."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    for folder in PLACES:
        with suppress(OSError):
            if folder.stat().st_mode & stat.S_IWOTH:
                return folder / NAME
    return PLACES[-1] / NAME


@contextmanager
def host_lock(lock: str, what: str, waiting: Callable[[str], None]) -> Iterator[None]:
    """Have the machine to oneself; give it back at the end.

    Args:
        lock: ``wait`` until it is free, ``fail`` at once when it is not, or ``off``: do not ask.
        what: told to those who wait.
        waiting: called with a text, again and again.

    Raises:
        HostBusyError: it is taken, with ``fail``.
        EngineError: the file can't be opened.
    """
    check(lock)
    if lock == OFF:
        yield
        return
    descriptor = _open(place())
    try:
        while not _taken(descriptor):
            said = f"this machine is busy: {_read(descriptor) or 'another benchmark runs'}"
            if lock == FAIL:
                raise HostBusyError(f"{said}; wait for it, or set lock=wait to have it done")
            waiting(said)
            time.sleep(POLL_S)
        _sign(descriptor, what)
        try:
            yield
        finally:
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder() -> Holder | None:
    """Who has this machine now; None when nobody does."""
    try:
        descriptor = os.open(place(), os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        return None if _taken(descriptor) else _read(descriptor)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    """A file of another user in a sticky folder may be opened, but not with O_CREAT (fs.protected_regular)."""
    flags = os.O_RDWR | os.O_NOFOLLOW
    try:
        with suppress(FileExistsError):  # someone was faster
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)  # whatever the umask
            return descriptor
        try:
            return os.open(path, flags)
        except PermissionError:
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)  # enough to lock, though not to say who
    except OSError as error:
        raise EngineError(
            f"{path}: {error.strerror}; it keeps two benchmarks on one machine apart: set {VARIABLE}=<a file that "
            "all who use it can write>, or lock=off"
        ) from error


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sign(descriptor: int, what: str) -> None:
    signed = Holder(pid=os.getpid(), user=_user(), what=str(redact(what)), since_s=time.time())
    with suppress(OSError):  # another user's file, or a full disk: the lock holds all the same
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, orjson.dumps(asdict(signed)), 0)


def _read(descriptor: int) -> Holder | None:
    try:
        return Holder(**orjson.loads(os.pread(descriptor, 1 << 16, 0)))
    except (orjson.JSONDecodeError, TypeError):  # it is just being written, or by another version
        return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return str(os.getuid())
