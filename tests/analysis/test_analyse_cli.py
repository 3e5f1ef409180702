"""``analyse`` as a user types it."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    captured = capsys.readouterr()
    return int(str(ended.value.code)), captured.out, captured.err


def test_it_prints_the_verdict_the_table_and_where_the_files_are(
    world: Any, speed: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    folder = world({"llamacpp": speed(spread=0.02), "ostinato": speed(0.5, 0.02)})
    status, out, err = run(capsys, str(folder), "--baseline", "llamacpp")
    assert (status, err) == (0, "")
    assert out.startswith("Ostinato finishes the 8 sessions 2.0× sooner than llama.cpp; 95 % interval ")
    assert "llama.cpp (baseline)" in out
    for name in ("report.html", "summary.md", "results.json"):
        assert str(folder / name) in out
        assert (folder / name).stat().st_size > 1000
    assert not list(folder.glob("*.new"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "analyse: nowhere: no such folder; name one that `replay` wrote\n"),
        (["."], "analyse: .: no result.json here or below; name a folder that `replay` wrote\n"),
        ([], "analyse: the following arguments are required: FOLDER; see analyse --help\n"),
        (["logs"], "analyse logs: the following arguments are required: FILE; see analyse logs --help\n"),
    ],
)
def test_what_is_no_folder_of_runs_is_one_line_and_exit_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(capsys, *arguments) == (2, "", message)


def test_an_unknown_baseline_is_one_line_and_exit_2(
    world: Any, speed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = world({"llamacpp": speed(), "ostinato": speed()}, sessions=1)
    status, out, err = run(capsys, str(folder), "--baseline", "vllm")
    assert (status, out) == (2, "")
    assert err == "analyse: no engine 'vllm' with a finished session here; name one of llamacpp, ostinato\n"
    assert not (folder / "report.html").exists()


def test_a_report_that_cannot_be_written_is_one_line_and_exit_2(
    world: Any, speed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = world({"ostinato": speed()}, sessions=1)
    (folder / "results.json").mkdir()
    status, out, err = run(capsys, str(folder))
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.endswith("Is a directory; free some space or name a folder that can be written\n")
    assert not list(folder.glob("*.new"))


def test_help_has_an_example_and_loads_nothing_heavy() -> None:
    script = (
        "import sys\nfrom analysis.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('numpy', 'pandas', 'plotly', 'scipy', 'rich', 'jinja2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "analyse results/" in done.stdout
    assert done.stdout.endswith("[]\n")


def test_who_stops_reading_hears_nothing() -> None:
    command = [sys.executable, "-m", "analysis.cli", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == -signal.SIGPIPE
