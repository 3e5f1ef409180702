"""How long a sweep of hundreds of runs takes to start, and its report to build.

    python benchmarks/sweep_scale.py [--rows 500] [--folder FOLDER]

Two sweeps: 25 settings with 20 repeats each, and as many settings as rows. The start is everything from the command
to the first run (``replay -m``, stopped there); the report is ``analyse`` on records that one real run of the
fake engine left, copied for each row with its times scaled.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from replay.batch import stored
from replay.record import RESULT_FILE, TURNS_FILE, read_result

PROJECT = Path(__file__).parents[1]
ENGINES = "fake,llamacpp,ik_llamacpp,ostinato,llama_server"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--folder", type=Path, help="keeps what is made; default: a temporary one")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (chosen.folder or Path(temporary)).absolute()
        shapes = {
            "25 settings": (
                f"engine={ENGINES}",
                "engine.threads=1,2,3,4,5",
                f"repeat=range({chosen.rows // 25})",
            ),
            "all unlike": ("engine=fake", f"engine.request_timeout_s=range(600,{600 + chosen.rows})"),
        }
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; wall time, and CPU time of the process\n")
        print("| sweep | rows | start | CPU | report | CPU |\n| :-- | --: | --: | --: | --: | --: |")
        for number, (name, words) in enumerate(shapes.items()):
            place = folder / str(number)
            place.mkdir(parents=True)
            start_s, start_cpu_s = _start(place, words)
            (sweep,) = place.glob("results/*/*")
            rows = _records(sweep, place)
            report_s, report_cpu_s = _timed([sys.executable, "-m", "analysis.cli", str(sweep)], place)
            assert (sweep / "report.html").is_file()
            times = " | ".join(f"{seconds:.1f} s" for seconds in (start_s, start_cpu_s, report_s, report_cpu_s))
            print(f"| {name} | {rows} | {times} |", flush=True)


def _start(place: Path, words: tuple[str, ...]) -> tuple[float, float]:
    """Until the first run begins; then it is stopped."""
    command = [sys.executable, "-m", "replay.cli", "-m", *words, "workload=synthetic", "lock=off", "report=null"]
    environment = _environment()
    began_s = time.perf_counter()
    process = subprocess.Popen(command, cwd=place, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = process.stderr.readline()
    seconds = time.perf_counter() - began_s
    assert "reading the model" in first, first
    ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    cpu_s = (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
    process.kill()  # no engine is there yet; a SIGTERM would leave nothing behind
    process.communicate()
    return seconds, cpu_s


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))}


def _timed(command: list[str], place: Path) -> tuple[float, float]:
    before, began_s = os.times(), time.perf_counter()
    subprocess.run(command, cwd=place, env=_environment(), check=False, stdout=subprocess.DEVNULL)
    after = os.times()
    cpu_s = after.children_user - before.children_user + after.children_system - before.children_system
    return time.perf_counter() - began_s, cpu_s


def _template(place: Path) -> Path:
    """One real run: thirteen sessions of five turns."""
    command = [sys.executable, "-m", "replay.cli", "engine=fake", "workload=synthetic", "workload.sessions=13"]
    command += ["workload.turns=5", "report=null", "lock=off", "results=template", "engine.options.decode_ms=0"]
    subprocess.run(command, cwd=place, env=_environment(), check=True, stderr=subprocess.DEVNULL)
    (result,) = place.glob(f"template/*/*/*/{RESULT_FILE}")
    return result.parent


def _records(sweep: Path, place: Path) -> int:
    template = _template(place)
    result, turns = read_result(template), (template / TURNS_FILE).read_bytes().splitlines()
    rows = stored(sweep)["rows"]
    for number, row in enumerate(rows):
        folder = sweep / row["folder"]
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        engine = row["config"]["engine"]
        settings = {**result["engine"]["settings"], **{k: v for k, v in engine.items() if isinstance(v, int | float)}}
        about = {**result["engine"], "name": engine["name"], "label": engine["label"], "settings": settings}
        made = result | {"engine": about, "repeat": row["config"]["repeat"], "config_hash": row["config_hash"]}
        (folder / RESULT_FILE).write_bytes(orjson.dumps(made))
        (folder / TURNS_FILE).write_bytes(b"".join(_scaled(turns, engine["name"], made["repeat"], 1 + number / 1000)))
    return len(rows)


def _scaled(turns: list[bytes], engine: str, repeat: int, factor: float) -> Iterator[bytes]:
    for line in turns:
        turn: dict[str, Any] = orjson.loads(line)
        sent = turn["sent_ns"]
        turn |= {"engine": engine, "repeat": repeat, "end_ns": sent + round((turn["end_ns"] - sent) * factor)}
        turn["token_ns"] = [sent + round((at - sent) * factor) for at in turn["token_ns"]]
        turn["first_byte_ns"] = sent + round((turn["first_byte_ns"] - sent) * factor)
        yield orjson.dumps(turn) + b"\n"


if __name__ == "__main__":
    main()
