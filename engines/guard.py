"""Runs one engine so that nothing of it outlives the harness. Linux; standard library only: it starts fast.

A process of its own between the two, because only a third one can clean up after a harness that is killed. It is told
``{"command", "environment", "grace_s"}`` as a line of JSON on its standard input and answers on its standard output:
``pid <n>`` or ``error <text>``, and at the end ``exit <code>`` (negative: the signal). Its standard error is the
engine's log.

A line ``stop`` asks for SIGTERM and, after the grace, SIGKILL. The input's end without that line says that the
harness is gone. What the engine has started belongs to it, however it was started: orphans become children of this
process (PR_SET_CHILD_SUBREAPER) and are found in /proc.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_ABANDONED_GRACE_S = 1.0
_STEP_S = 0.02


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # the harness decides; only the input's end counts
    order = json.loads(_line() or "null")
    if order is None:
        return
    pid = _start(libc, order["command"], order["environment"])
    _tell(f"pid {pid}")
    grace_s = _until_exit_or_order(pid, order["grace_s"])
    status = _stop(pid, grace_s)
    _tell(f"exit {os.waitstatus_to_exitcode(status)}")


def _line() -> bytes:
    """A line of the input, unbuffered, so that ``select`` sees what follows."""
    line = bytearray()
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return bytes(line) if byte else b""


def _tell(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody is there to be told
        os.write(1, f"{text}\n".encode())


def _start(libc: ctypes.CDLL, command: list[str], environment: dict[str, str]) -> int:
    guard = os.getpid()
    failed, report = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
                signal.signal(name, signal.SIG_DFL)
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != guard:
                os._exit(1)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(2, 1)
            os.execvpe(command[0], command, environment)  # noqa: S606 the user's own command
        except OSError as error:
            os.write(report, (error.strerror or "unknown").encode())
        os._exit(127)
    os.close(report)
    reason = os.read(failed, 1000)
    os.close(failed)
    if reason:
        _tell(f"error {reason.decode()}")
        sys.exit(0)
    return pid


def _until_exit_or_order(pid: int, grace_s: float) -> float:
    """Wait; return the grace that the situation calls for."""
    engine = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(engine, select.POLLIN)
    poll.register(0, select.POLLIN | select.POLLHUP)
    ready = {handle for handle, _ in poll.poll()}
    if engine in ready:
        return 0.0  # its helpers have nobody to work for
    return grace_s if _line() == b"stop" else min(grace_s, _ABANDONED_GRACE_S)


def _stop(pid: int, grace_s: float) -> int:
    """End the engine and all it started; return the engine's wait status."""
    status = None
    deadline = time.monotonic() + grace_s
    _signal_all(signal.SIGTERM if grace_s else signal.SIGKILL)
    while True:
        try:
            ended, its_status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            assert status is not None
            return status
        if ended == pid:
            status = its_status
        if ended == 0:
            if time.monotonic() >= deadline:
                _signal_all(signal.SIGKILL)  # again and again: a process may have forked meanwhile
            time.sleep(_STEP_S)


def _signal_all(number: int) -> None:
    parents = _parents()
    for pid in parents:
        ancestor: int | None = pid
        while ancestor is not None and ancestor != os.getpid():
            ancestor = parents.get(ancestor)
        if ancestor is not None and pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):  # it was faster
                os.kill(pid, number)


def _parents() -> dict[int, int]:
    """Process id → parent's, of every process that can be seen."""
    parents = {}
    for folder in Path("/proc").glob("[1-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            stat = (folder / "stat").read_bytes()
            # pid (command) state ppid …; the command may hold blanks and brackets.
            parents[int(folder.name)] = int(stat[stat.rindex(b")") + 2 :].split()[1])
    return parents


if __name__ == "__main__":
    main()
