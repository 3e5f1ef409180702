"""Who has the machine, who waits for it, and when it is given back."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.base import EngineError
from replay import host_lock
from replay.host_lock import HostBusyError
from replay.record import TURNS_FILE

Command = Callable[..., Any]
Fake = Callable[..., list[str]]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(host_lock.VARIABLE, str(tmp_path / "host.lock"))
    return tmp_path / "host.lock"


@pytest.fixture
def other(file: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that has the machine until its input ends."""
    code = (
        "import sys; from replay.host_lock import host_lock\n"
        "with host_lock('wait', 'replay table3', print):\n"
        "    print('has it', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "has it\n"
    yield process
    process.kill()
    process.communicate()


def silent(_: str) -> None:
    return


def test_nobody_has_it_before_and_after(file: Path) -> None:
    assert host_lock.holder() is None
    with host_lock.host_lock("wait", "replay table3", silent):
        found = host_lock.holder()
        assert found is not None
        assert (found.pid, found.what) == (os.getpid(), "replay table3")
    assert host_lock.holder() is None
    assert file.stat().st_mode & 0o777 == 0o666


def test_who_may_not_wait_is_told_who_has_it(other: "subprocess.Popen[str]") -> None:
    with (
        pytest.raises(HostBusyError, match=rf"replay table3 \(pid {other.pid} of .*, for 0 min\); wait for it"),
        host_lock.host_lock("fail", "mine", silent),
    ):
        pass
    assert host_lock.holder() is not None


def test_who_waits_gets_it_when_the_holder_is_killed(other: "subprocess.Popen[str]") -> None:
    said: list[str] = []
    waits, got = threading.Event(), threading.Event()

    def waiting(text: str) -> None:
        said.append(text)
        waits.set()

    def wait() -> None:
        with host_lock.host_lock("wait", "mine", waiting):
            got.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert waits.wait(30)
    assert not got.is_set()
    assert "this machine is busy: replay table3 (pid " in said[0]
    other.send_signal(signal.SIGKILL)
    assert got.wait(30)
    thread.join(30)


def test_off_asks_nobody(other: "subprocess.Popen[str]") -> None:
    with host_lock.host_lock("off", "mine", silent):
        pass


def test_another_setting_is_refused(file: Path) -> None:
    with pytest.raises(EngineError, match="lock=maybe is not known; set wait, fail or off"):
        host_lock.check("maybe")


def test_a_place_that_cannot_be_written_says_what_to_do(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(host_lock.VARIABLE, "/proc/nowhere/lock")
    with (
        pytest.raises(EngineError, match=r"OSTINATO_LOCK=<a file .* or lock=off"),
        host_lock.host_lock("wait", "", silent),
    ):
        pass


def test_a_link_in_its_place_is_not_followed(file: Path, tmp_path: Path) -> None:
    file.symlink_to(tmp_path / "precious")
    with pytest.raises(EngineError, match=r"host\.lock"), host_lock.host_lock("wait", "", silent):
        pass
    assert not (tmp_path / "precious").exists()


def test_every_user_of_a_host_takes_the_same_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(host_lock.VARIABLE)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert host_lock.place().parent in host_lock.PLACES


def test_a_run_that_may_not_wait_is_refused_and_leaves_nothing(
    replay: Command, fake: Fake, other: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    done = replay(*fake(), "lock=fail")
    assert done.code == 2
    assert "this machine is busy: replay table3" in done.complaint
    assert not list(tmp_path.rglob(TURNS_FILE))
    assert replay(*fake(), "lock=off", "report=null").code == 0


def test_who_has_it_names_no_secret(file: Path) -> None:
    with host_lock.host_lock("wait", "replay engine.env.HF_TOKEN=hf_0123456789abcdef0", silent):
        assert "0123456789abcdef0" not in file.read_text()
