"""``replay`` as a user types it: what it leaves, what it prints, how it exits."""

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.forcing.self_test import probes
from replay.record import read_result, read_turns

Command = Callable[..., Any]
Fake = Callable[..., list[str]]
Runs = Callable[[], list[Path]]
Due = Callable[[], int]


def test_help_shows_examples_and_choices(replay: Command) -> None:
    done = replay("--help")
    assert done.code == 0
    assert "replay -m engine=ostinato,llamacpp" in done.out
    assert "tau1, tau2, vcr, weka" in done.out


def test_the_configuration_can_be_shown_without_running(replay: Command, tmp_path: Path) -> None:
    done = replay("engine=fake", "--cfg", "job")
    assert done.code == 0
    assert "name: fake" in done.out
    assert not list(tmp_path.iterdir())
    done = replay("-m", "engine=fake,ostinato", "--cfg", "job")
    assert (done.code, done.err) == (
        2,
        "replay: --cfg shows one run's settings; leave -m out and name one value a setting\n",
    )


def test_a_run_leaves_records_and_a_report(replay: Command, fake: Fake, runs: Runs) -> None:
    done = replay(*fake())
    assert done.code == 0, done.err
    (folder,) = runs()
    assert folder.name == "fake"
    turns = list(read_turns(folder))
    assert len(turns) == 9
    assert {turn.status for turn in turns} == {"ok"}
    assert {path.name for path in folder.iterdir()} == {
        "turns.jsonl",
        "result.json",
        "server.log",
        "telemetry.parquet",
    }
    report = folder.parent / "report.html"
    assert report.is_file()
    assert (folder.parent / "summary.md").is_file()
    assert f"report   {report.relative_to(Path.cwd())}" in done.out
    written = {"batch.json", "report.html", "summary.md", "results.json", "tables", "turns.parquet"}
    assert {path.name for path in folder.parent.iterdir()} == {"fake", *written}


def test_a_sweep_has_a_folder_a_run_and_one_report(replay: Command, fake: Fake, runs: Runs, due: Due) -> None:
    done = replay("-m", *fake(), "repeat=0,1", "name=twice", "workload.sessions=1")
    assert done.code == due(), done.err
    assert [folder.name for folder in runs()] == ["fake,repeat=0", "fake,repeat=1"]
    assert [{turn.repeat for turn in read_turns(folder)} for folder in runs()] == [{0}, {1}]
    above = runs()[0].parent
    assert above.parent.name == "twice"
    assert (above / "report.html").is_file()
    assert not (above / "multirun.yaml").exists()
    assert "fake 2/2" in done.err


def test_an_experiment_sweeps_by_itself_and_takes_other_engines(
    replay: Command, fake: Fake, runs: Runs, due: Due
) -> None:
    done = replay("+experiment=quickstart", *fake(), "report=null")
    assert done.code == due(), done.err
    assert [folder.name for folder in runs()] == ["fake"]
    assert runs()[0].parent.parent.name == "quickstart"


def test_a_sweep_goes_on_after_a_run_that_failed(replay: Command, fake: Fake, runs: Runs) -> None:
    done = replay("-m", *fake(), "engine.context=10,32768")
    assert done.code == 1
    assert "replay: fake: session" in done.err
    failed, complete = (read_result(folder) for folder in runs())
    assert failed["status"] == "failed"
    assert "set engine.context=" in failed["error"]
    assert failed["sessions"] == {}
    assert complete["status"] == "complete"
    assert (runs()[0].parent / "report.html").is_file()


def test_the_result_says_what_ran(replay: Command, fake: Fake, runs: Runs) -> None:
    replay(*fake(), "report=null")
    result = read_result(runs()[0])
    assert result["status"] == "complete"
    assert set(result["sessions"].values()) == {"complete"}
    assert result["workload"]["sessions"] == 3
    assert result["workload"]["turns"] == 9
    assert result["config"]["engine"]["name"] == "fake"
    assert result["engine"]["settings"]["options"]["decode_ms"] == "0"
    checks = {check["name"]: check["ok"] for check in result["validity"]}
    assert checks["tokens verified"]
    assert checks["cache reused"]
    assert checks["sessions complete"]
    assert checks["warm-up done and excluded"]
    assert result["clock"]["wall_ns"] > 1_700_000_000 * 10**9


def test_a_session_that_fails_for_good_ends_with_1(replay: Command, fake: Fake, runs: Runs) -> None:
    done = replay(*fake(f"http_500:{len(list(probes(4096))) + 3}"), "retries=0")
    assert done.code == 1
    assert sorted(read_result(runs()[0])["sessions"].values()) == ["complete", "complete", "failed"]
    assert (runs()[0].parent / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["engine.colour=red"], "Key 'colour' not in 'EngineSettings'"),
        (["+engine.colour=red"], "Key 'colour' not in 'EngineSettings'"),
        (["engine=vroom"], "Available options in 'engine': atsinfer"),
        (["engine.port=high"], "Value 'high' of type 'str' could not be converted to Integer"),
        (["engine"], "Error parsing override 'engine'"),
        (["on_failure=panic"], "set continue or stop"),
        (["workload=tau2", "workload.path=nowhere.json"], "nowhere.json"),
        (["engine.command=[/no/such/server,'{decode_ms}']"], "/no/such/server"),
        (["engine.context=10"], "set engine.context="),
        (["engine.port=99999"], "engine.port=99999 is no port; set 1 to 65535"),
        (["engine=7"], "engine=7 names no engine; choose one of atsinfer, "),
        (
            ["+engine.options.delay=5"],
            "engine.options.delay: nothing of engine fake uses it; its options are decode_ms",
        ),
        (["on_noise=loud"], "on_noise=loud is not known; set fail or warn"),
        (["repeat=-1"], "repeat=-1 is negative; set 0 or more"),
        (["engine.cache_block_tokens=0"], "engine.cache_block_tokens=0 is no size; set 1 or more"),
        (["engine.state=lukewarm"], "engine.state=lukewarm is not known; set cold or warm:FOLDER"),
        (["engine.state=warm:nowhere"], "engine fake keeps nothing beyond a run"),
        (["+experiment=7"], "+experiment=7 names no experiment; choose one of "),
        (["results=/dev/null/x"], "(Not a directory); set results="),
        (["report=nope.x"], "report=nope.x: No module named 'nope'; name a function"),
        (["report=analysis.report.nope"], "set report=null"),
        (["report=7"], "report=7: "),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_bad_input_is_one_line_and_leaves_nothing(
    replay: Command, fake: Fake, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = replay(*fake(), *arguments)
    assert done.code == 2
    assert message in done.complaint
    assert not list(tmp_path.iterdir())


def test_bad_input_of_every_run_of_a_sweep_leaves_nothing(replay: Command, fake: Fake, tmp_path: Path) -> None:
    done = replay("-m", *fake(), "repeat=0,1", "workload=tau2", "workload.path=nowhere.json")
    assert done.code == 2
    assert done.err.count("replay: fake: ") == 2
    assert not list(tmp_path.iterdir())


def test_an_unknown_engine_in_a_sweep_starts_none(replay: Command, fake: Fake, tmp_path: Path) -> None:
    done = replay("-m", *fake(), "engine=fake,vroom")
    assert done.code == 2
    assert "Available options in 'engine': atsinfer" in done.complaint
    assert not list(tmp_path.iterdir())


def test_other_tokens_than_forced_are_found_before_the_first_turn(
    replay: Command, fake: Fake, tmp_path: Path
) -> None:
    done = replay(*fake("wrong_token"))
    assert done.code == 2
    assert re.search(r"output token \d+: forced \d+, got \d+", done.complaint)
    assert left(tmp_path) == ["server.log"]


def test_an_engine_that_dies_at_its_start_is_quoted_and_its_log_kept(
    replay: Command, fake: Fake, tmp_path: Path
) -> None:
    done = replay(*fake(), """engine.command=['{python}','-c','print("no luck"); exit(3)','{decode_ms}']""")
    assert done.code == 2
    assert "exit code 3" in done.complaint
    assert "no luck" in done.err
    assert left(tmp_path) == ["server.log"]


def left(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("sweep", [[], ["-m", "repeat=0,1"]], ids=["run", "sweep"])
def test_results_that_are_a_file_are_refused(replay: Command, fake: Fake, tmp_path: Path, sweep: list[str]) -> None:
    (tmp_path / "taken").write_text("precious")
    done = replay(*sweep, *fake(), "results=taken")
    assert done.code == 2
    assert "set results=<a folder that can be written>" in done.complaint
    assert (tmp_path / "taken").read_text() == "precious"


def test_a_report_that_cannot_be_written_ends_with_1_and_says_how_to_get_it(
    replay: Command, fake: Fake, tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.name == "report.html.new":
            write(path, data[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    done = replay(*fake())
    assert done.code == 1
    above = runs()[0].parent
    assert (
        f"{above.relative_to(tmp_path) / 'report.html'}: No space left on device; the records are kept"
        in done.complaint
    )
    assert f"run `analyse {above.relative_to(tmp_path)}`" in done.complaint
    assert {path.name for path in above.iterdir()} == {"fake", "batch.json"}
    assert read_result(runs()[0])["status"] == "complete"


def test_who_stops_reading_the_help_hears_nothing() -> None:
    command = [sys.executable, "-m", "replay.cli", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode in (0, 141)


def test_ctrl_c_while_it_loads_is_quiet() -> None:
    code = (
        "import builtins, os, signal; load = builtins.__import__\n"
        "def late(name, *rest, **more):\n"
        "    if name == 'hydra': os.kill(os.getpid(), signal.SIGINT)\n"
        "    return load(name, *rest, **more)\n"
        "builtins.__import__ = late; import replay.cli"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"")


def test_a_folder_that_holds_a_run_is_not_written_to(replay: Command, fake: Fake, tmp_path: Path) -> None:
    held = tmp_path / "mine"
    held.mkdir()
    (held / "turns.jsonl").write_text("precious")
    done = replay(*fake(), "hydra.run.dir=mine")
    assert done.code == 2
    assert "already holds a run" in done.complaint
    assert [path.name for path in held.iterdir()] == ["turns.jsonl"]
    assert (held / "turns.jsonl").read_text() == "precious"
