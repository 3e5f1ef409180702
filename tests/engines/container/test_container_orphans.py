import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from engines.container.orphans import RUN, Owner, is_orphan, started


def labels(owner: Owner) -> dict[str, str]:
    return owner.labels(Path("/results/run"))


def test_labels_say_whose_run_it_is_and_can_be_read_back() -> None:
    here = Owner.this_process()
    assert labels(here)[RUN] == "/results/run"
    assert Owner.of(labels(here)) == here
    assert here.pid == os.getpid()


def test_a_container_of_a_living_process_is_no_orphan() -> None:
    here = Owner.this_process()
    assert not is_orphan(labels(here), here)


def test_a_container_whose_process_is_gone_is_an_orphan() -> None:
    here = Owner.this_process()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = started(child.pid)
    assert start is not None
    owner = replace(here, pid=child.pid, start=start)
    assert not is_orphan(labels(owner), here)
    child.communicate(b"\n")
    assert is_orphan(labels(owner), here)


def test_a_number_that_another_process_has_now_does_not_count() -> None:
    here = Owner.this_process()
    assert is_orphan(labels(replace(here, start=here.start - 1)), here)


def test_what_a_machine_left_before_it_was_started_again_is_an_orphan() -> None:
    here = Owner.this_process()
    assert is_orphan(labels(replace(here, boot="another")), here)


def test_what_another_machine_runs_on_the_same_daemon_is_left_alone() -> None:
    here = Owner.this_process()
    assert not is_orphan(labels(replace(here, host="another", boot="another")), here)


def test_containers_without_whole_labels_are_left_alone() -> None:
    here = Owner.this_process()
    assert not is_orphan({}, here)
    assert not is_orphan({**labels(here), "ostinato.pid": "seven"}, here)
