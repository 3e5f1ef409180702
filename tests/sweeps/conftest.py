"""``replay -m`` with a launcher, as a command of its own; and what it left."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from replay.record import RESULT_FILE, read_result, read_turns
from replay.rows import COMPLETE, has_turns, status

PROJECT = Path(__file__).parents[2]
SMALL = ("engine=fake", "workload=synthetic", "workload.sessions=2", "workload.turns=2", "telemetry.every_s=null")


@dataclass(frozen=True)
class Row:
    """A run folder of a sweep."""

    folder: Path

    @property
    def job(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads((self.folder / "job.json").read_bytes())
        return found

    @property
    def result(self) -> dict[str, Any]:
        return read_result(self.folder)

    @property
    def engine_lives(self) -> bool:
        """Whether an engine of this sweep is still there: it works where the command was typed."""
        typed_in = str(self.folder.parents[3])
        found = psutil.process_iter(["cmdline", "cwd"])
        return any(p.info["cwd"] == typed_in and "engines.fake" in (p.info["cmdline"] or ()) for p in found)

    @property
    def has_result(self) -> bool:
        return (self.folder / RESULT_FILE).is_file()

    @property
    def has_turns(self) -> bool:
        return has_turns(self.folder)

    @property
    def worked_ns(self) -> tuple[int, int]:
        """From the run's first reading of the clock that all processes of a machine share to its last token."""
        return self.result["clock"]["perf_ns"], max(turn.end_ns or 0 for turn in read_turns(self.folder))


class Sweep:
    """``replay -m …`` in a folder of its own, while it runs and after."""

    def __init__(self, folder: Path, words: tuple[str, ...], environment: dict[str, str]) -> None:
        self.folder = folder
        path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "replay.cli", "-m", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.out = self.err = ""

    def wait(self) -> int:
        self.out, self.err = self.process.communicate(timeout=240)
        return self.process.returncode

    def rows(self) -> dict[str, Row]:
        """By folder name; those that have left a note or a result."""
        files = (path for name in (RESULT_FILE, "job.json") for path in self.folder.glob(f"results/*/*/*/{name}"))
        return {folder.name: Row(folder) for folder in sorted({path.parent for path in files})}

    def due(self) -> int:
        """The exit code that the rows ask for: two cores shared by two "hosts" may make a run of 1 ms invalid."""
        return int(any(status(row.folder).name != COMPLETE for row in self.rows().values()))

    def until(self, met: Callable[[], Any]) -> None:
        end = time.monotonic() + 120
        while not met():
            assert time.monotonic() < end, "waited for two minutes"
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.05)

    def stop_at_work(self) -> dict[str, Row]:
        """SIGTERM once a run has turns: its runs end as interrupted, and their engines with them."""
        self.until(lambda: any(row.has_turns for row in self.rows().values()))
        self.process.send_signal(signal.SIGTERM)
        assert self.wait() == 143, self.err
        rows = self.rows()
        assert {row.result["status"] for row in rows.values() if row.has_result} == {"interrupted"}
        assert not any(row.engine_lives for row in rows.values())
        return rows

    @staticmethod
    def overlaps(rows: "list[Row]") -> list[tuple[str, str]]:
        """Pairs of runs that were at work at the same time."""
        ordered = sorted(rows, key=lambda row: row.worked_ns)
        return [
            (one.folder.name, other.folder.name)
            for one, other in itertools.pairwise(ordered)
            if one.worked_ns[1] > other.worked_ns[0]
        ]


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Callable[..., Sweep]]:
    """``sweep(*words, **environment)`` starts one; it does not outlive the test."""
    started: list[Sweep] = []

    def start(*words: str, **environment: str) -> Sweep:
        small = () if words[0].startswith("resume=") else SMALL
        started.append(Sweep(tmp_path, (*small, *words), environment))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.communicate()
