"""A run in a process that a launcher would have started: here this one."""

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from replay.batch import BATCH_FILE, Row, with_hashes
from replay.bring_home import packed, unpack
from replay.config import composed
from replay.launched import JOB_FILE, LOG_FILE, Job, read_note, work
from replay.record import RESULT_FILE, TURNS_FILE, read_result

Fake = Callable[..., list[str]]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def job(tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    words = [*fake(), "workload.sessions=1", "workload.turns=2", "telemetry.every_s=null"]
    home = tmp_path / "home"
    home.mkdir()
    (home / BATCH_FILE).write_bytes(orjson.dumps({"id": "abc"}))
    (row,) = with_hashes([Row(folder=home / "fake", config=asdict(composed(words)))])
    return Job(
        row=row, number=0, runs=1, resume=False, launcher="joblib", attempt=0, home=home, home_id="abc", cwd=tmp_path
    )


def test_what_is_carried_arrives_as_it_was(job: Job) -> None:
    assert Job.of(job.text()) == job
    assert "${" not in job.text()


def test_it_says_nothing_on_the_terminal_and_everything_in_its_log(job: Job, capfd: Capture) -> None:
    returned = work(job)
    assert (returned.code, returned.complaint, returned.files) == (0, None, None)
    folder = job.row.folder
    assert capfd.readouterr() == ("", "")
    assert "warming up" in (folder / LOG_FILE).read_text()
    note = read_note(folder)
    assert note is not None
    assert (note["status"], note["pid"], note["attempt"]) == ("ended", os.getpid(), 0)
    assert read_result(folder)["status"] == "complete"
    assert read_result(folder)["config_hash"] == job.row.config_hash


def test_a_host_that_does_not_see_the_sweeps_folder_sends_its_files(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    returned = work(replace(job, home_id="another"))
    assert not job.row.folder.exists()
    assert returned.files is not None
    assert set(returned.files) == {RESULT_FILE, TURNS_FILE, "server.log", JOB_FILE, LOG_FILE}
    assert list(scratch.iterdir()) == []
    unpack(returned.files, job.row.folder)
    assert read_result(job.row.folder)["status"] == "complete"


def test_a_run_that_cannot_be_is_a_complaint_and_a_failed_row(job: Job) -> None:
    engine = {**job.row.config["engine"], "context": 10}
    returned = work(replace(job, row=replace(job.row, config={**job.row.config, "engine": engine})))
    assert returned.code == 2
    assert "set engine.context=" in str(returned.complaint)
    assert read_result(job.row.folder)["status"] == "failed"


def test_a_sigterm_stops_the_run_and_not_the_process(job: Job) -> None:
    slow = {**job.row.config["engine"], "options": {**job.row.config["engine"]["options"], "decode_ms": "100"}}

    def stop() -> None:
        note = None
        while note is None or note["status"] != "running" or not (job.row.folder / TURNS_FILE).exists():
            time.sleep(0.02)
            note = read_note(job.row.folder)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    try:
        returned = work(replace(job, row=replace(job.row, config={**job.row.config, "engine": slow})))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (returned.code, returned.complaint) == (143, "stopped by a signal")
    assert read_result(job.row.folder)["status"] == "interrupted"


def test_an_engine_does_not_inherit_what_a_launcher_set_for_its_workers(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMEXPR_NUM_THREADS", "1")  # which the process above this one does not have
    told: dict[str, Any] = {}

    def run(*_: Any, **__: Any) -> Any:
        told.update(os.environ)
        raise SystemExit(3)

    monkeypatch.setattr("replay.launched.survived", run)
    assert work(job).code == 3
    assert "NUMEXPR_NUM_THREADS" not in told
    assert os.environ["NUMEXPR_NUM_THREADS"] == "1"


def test_what_is_too_large_stays_and_the_records_never_do(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "heat.bin").write_bytes(os.urandom(5000))
    (tmp_path / TURNS_FILE).write_bytes(os.urandom(3000))
    (tmp_path / RESULT_FILE).write_bytes(b"{}")
    (tmp_path / "server.log").write_bytes(b"hello")
    files, left = packed(tmp_path, most_bytes=3500)
    assert set(files) == {RESULT_FILE, TURNS_FILE, "server.log"}
    assert left == ("state/heat.bin",)
    home = tmp_path / "home"
    unpack(packed(tmp_path)[0], home)
    assert (home / "state" / "heat.bin").read_bytes() == (tmp_path / "state" / "heat.bin").read_bytes()


def test_a_file_from_elsewhere_is_not_unpacked_outside_the_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no file of a run"):
        unpack({"../outside": b""}, tmp_path / "run")
