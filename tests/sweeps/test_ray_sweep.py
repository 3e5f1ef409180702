"""Two Ray nodes, each a host of its own as far as a sweep can tell, on this machine."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from analysis.report import write_report
from replay.host_lock import VARIABLE

pytest.importorskip("ray", reason="Ray is not here: pip install '.[sweeps]'")
pytest.importorskip("hydra_plugins.hydra_ray_launcher", reason="its launcher is not here: pip install '.[sweeps]'")
pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]
Start = Callable[..., Any]

NODE = ("--num-cpus=2", "--object-store-memory=78643200", "--disable-usage-stats", "--block")
HOST = '--resources={"bench_host": 1}'


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """A head and a second node; what a driver needs in its environment to connect."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # sockets lie below it, whose paths are short
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
    nodes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *words: str) -> str:
        path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
        log = folder / f"{name}.log"
        with log.open("wb") as out:
            nodes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "ray.scripts.scripts", "start", *words, HOST, *NODE],
                    env={**os.environ, **token, "PYTHONPATH": path, VARIABLE: str(folder / f"{name}.lock")},
                    stdout=out,
                    stderr=subprocess.STDOUT,
                )
            )
        until_s = time.monotonic() + 120
        while "block forever" not in log.read_text():
            assert time.monotonic() < until_s, log.read_text()
            assert nodes[-1].poll() is None, log.read_text()
            time.sleep(0.1)
        return log.read_text()

    try:
        said = start("head", "--head", "--port=0", "--include-dashboard=false", f"--temp-dir={folder}/t")
        found = re.search(r"--address='([^']+)'", said)
        assert found, said
        start("second", f"--address={found[1]}")
        yield {**token, "RAY_ADDRESS": found[1]}
    finally:
        for node in reversed(nodes):
            children = []
            with suppress(psutil.Error):
                children = psutil.Process(node.pid).children(recursive=True)
            node.terminate()
            with suppress(subprocess.TimeoutExpired):
                node.wait(20)
            node.kill()
            node.wait()
            for child in children:
                with suppress(psutil.Error):
                    child.kill()
        shutil.rmtree(folder, ignore_errors=True)


def test_eight_runs_on_two_hosts_one_at_a_time_each_and_a_killed_worker_is_a_failed_row(
    cluster: dict[str, str], sweep: Start
) -> None:
    """The run that is killed would take longer than all others together."""
    running = sweep("hydra/launcher=ray", "engine.options.decode_ms=0,1,100,2,3,4,5,6", **cluster)
    victim = "fake,engine.options.decode_ms=100"
    running.until(lambda: victim in running.rows() and running.rows()[victim].has_turns)
    os.kill(running.rows()[victim].job["pid"], signal.SIGKILL)
    code = running.wait()
    assert code == 1, running.err
    rows = running.rows()
    assert len(rows) == 8
    failed = rows.pop(victim)
    assert failed.result["status"] == "failed"
    assert "the worker that had this run is gone" in failed.result["error"]
    assert {row.result["status"] for row in rows.values()} == {"complete"}, running.err
    nodes = {row.job["node"] for row in rows.values()} | {failed.job["node"]}
    assert len(nodes) == 2
    for node in nodes:
        assert running.overlaps([row for row in (*rows.values(), failed) if row.job["node"] == node]) == []
    assert "1 failed" in running.err
    assert f"  failed {victim}: the worker that had this run is gone" in running.err
    assert "Traceback" not in running.err
    above = failed.folder.parent
    assert (above / "report.html").is_file()
    (above / "report.html").unlink()
    assert "the worker that had this run is gone" in (write_report(above).with_name("summary.md")).read_text()

    again = sweep(f"resume={above}", "engine.options.decode_ms=1", **cluster)
    assert again.wait() == 2, again.err
    assert "engine.options was {'decode_ms': '100'" in again.err


def test_results_come_home_from_a_folder_of_the_host(cluster: dict[str, str], sweep: Start, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    running = sweep("hydra/launcher=ray", "repeat=0,1", f"scratch={scratch}", "engine.options.decode_ms=0", **cluster)
    assert running.wait() == running.due(), running.err
    rows = list(running.rows().values())
    assert [row.job["in_home"] for row in rows] == [False, False]
    for row in rows:
        names = {path.name for path in row.folder.iterdir()}
        assert names == {"job.json", "job.log", "result.json", "server.log", "turns.jsonl"}
    assert list(scratch.iterdir()) == []
    assert (rows[0].folder.parent / "report.html").is_file()


def test_a_sweep_that_is_stopped_stops_its_runs_and_they_are_done_when_it_is_resumed(
    cluster: dict[str, str], sweep: Start
) -> None:
    running = sweep("hydra/launcher=ray", "repeat=0,1,2", "engine.options.decode_ms=30", **cluster)
    rows = running.stop_at_work()
    above = next(iter(rows.values())).folder.parent
    resumed = sweep(f"resume={above}", **cluster)
    assert resumed.wait() == resumed.due(), resumed.err
    assert [row.result["status"] for row in resumed.rows().values()] == ["complete"] * 3


def test_a_cluster_without_benchmark_hosts_is_refused(cluster: dict[str, str], sweep: Start) -> None:
    running = sweep("hydra/launcher=ray", "repeat=0,1", "+hydra.launcher.ray.remote.resources.h100=1", **cluster)
    assert running.wait() == 2
    assert "no host of the Ray cluster offers h100; start each with `ray start … --resources=" in running.err
    assert running.err.count("replay: ") == 1
